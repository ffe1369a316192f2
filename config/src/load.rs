use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Table;

use crate::ConfigError;
use crate::explain;
use crate::layers::{self, Leaf};

/// Who set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program.
    Default,
    /// The profile of this name.
    Profile(String),
    /// A file.
    File(PathBuf),
    /// The environment variable of this name.
    Environment(String),
    /// The command line; the key as given there.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(_) => f.write_str("command line"),
        }
    }
}

/// A named choice of values that suit a purpose better than the defaults: a layer above them and below everything a user says.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it sets, as TOML.
    pub text: &'a str,
    /// Keys (dotted) it sets that keep the defaults of this configuration all the same.
    pub except: &'a [&'a str],
}

impl Profile<'_> {
    fn settings(self) -> Result<Vec<(Leaf, Origin)>, ConfigError> {
        let table = parse(Path::new(self.name), self.text)?;
        let origin = Origin::Profile(self.name.to_owned());
        let leaves = layers::leaves(&table, true).into_iter();
        let taken = leaves.filter(|leaf| !self.except.contains(&leaf.key().as_str()));
        Ok(taken.map(|leaf| (leaf, origin.clone())).collect())
    }
}

/// A configuration and where each value comes from.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The configuration.
    pub value: T,
    /// Key, value and origin of every leaf, ordered by key. Secrets are redacted.
    pub origins: Vec<(String, String, Origin)>,
    /// Variables with our prefix that name no key and were left alone, such as those Kubernetes adds for a service.
    pub ignored_variables: Vec<String>,
}

/// A line of `config show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key, dotted.
    pub key: String,
    /// The value, redacted if it is a secret.
    pub value: String,
    /// Where it comes from, in words.
    pub origin: String,
}

impl<T> Loaded<T> {
    /// The lines of `config show`, ordered by key.
    pub fn rows(&self) -> Vec<Row> {
        let row = |(key, value, origin): &(String, String, Origin)| Row {
            key: key.clone(),
            value: value.clone(),
            origin: origin.to_string(),
        };
        self.origins.iter().map(row).collect()
    }

    /// Who set `key` (dotted), if there is such a leaf.
    pub fn origin_of(&self, key: &str) -> Option<&Origin> {
        self.origins.iter().find(|(name, _, _)| name == key).map(|(_, _, origin)| origin)
    }
}

/// Fills `T` from its defaults, then `profile`, then `file` (TOML), then those of `env` that begin with `THERMOCLINE_` (`THERMOCLINE_A__B` sets
/// `a.b`), then `flags` (dotted key, value).
///
/// A variable without `__` that is no top-level value, nor nearly one, is not for here (`THERMOCLINE_SERVICE_HOST`): it is left
/// alone and listed. Everything else that is unknown is refused.
///
/// # Errors
///
/// The first fault in the order of the layers, as a sentence that names key, value and source.
pub fn load<T>(
    profile: Option<Profile<'_>>,
    file: Option<&Path>,
    env: &[(String, String)],
    flags: &[(String, String)],
) -> Result<Loaded<T>, ConfigError>
where
    T: Default + Serialize + DeserializeOwned,
{
    let defaults = table_of(&T::default())?;
    let mut settings = profile.map_or_else(|| Ok(Vec::new()), Profile::settings)?;
    if let Some(path) = file {
        let table = read_file(path)?;
        settings.extend(layers::leaves(&table, true).into_iter().map(|leaf| (leaf, Origin::File(path.to_owned()))));
    }
    let mut ignored_variables = Vec::new();
    let mut variables: Vec<&(String, String)> =
        env.iter().filter(|(name, _)| name.starts_with("THERMOCLINE_")).collect();
    variables.sort();
    for (name, text) in variables {
        let origin = Origin::Environment(name.clone());
        let malformed = || ConfigError::MalformedKey { key: name.clone(), origin: origin.clone() };
        let mut path = layers::split_variable(name).ok_or_else(malformed)?;
        layers::respell(&defaults, &mut path);
        // `THERMOCLINE_LOG` is the log filter, also where `log` is a section: a variable cannot set a whole section.
        let names_section = path.len() == 1 && layers::find(&defaults, &path).is_some_and(toml::Value::is_table);
        let setting = read_text::<T>(&defaults, path, text, &origin);
        if names_section || is_foreign(&defaults, &setting) {
            ignored_variables.push(name.clone());
        } else {
            settings.push((setting?, origin));
        }
    }
    for (key, text) in flags {
        let origin = Origin::Flag(key.clone());
        let malformed = || ConfigError::MalformedKey { key: key.clone(), origin: origin.clone() };
        let path = layers::split_key(key).ok_or_else(malformed)?;
        settings.push((read_text::<T>(&defaults, path, text, &origin)?, origin));
    }
    let value = merge(&defaults, &settings)?;
    let origins = origins_of(&value, &settings)?;
    Ok(Loaded { value, origins, ignored_variables })
}

/// [`load`] with this process's environment.
///
/// # Errors
///
/// As [`load`].
pub fn load_from_process<T>(
    profile: Option<Profile<'_>>,
    file: Option<&Path>,
    flags: &[(String, String)],
) -> Result<Loaded<T>, ConfigError>
where
    T: Default + Serialize + DeserializeOwned,
{
    // Lossy, so that one odd variable of another program does not stop us.
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let env: Vec<_> = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    load(profile, file, &env, flags)
}

/// Writes a configuration as TOML text that [`load`] reads back. Secrets are written as they are.
///
/// # Errors
///
/// When the struct cannot be written as TOML.
pub fn to_toml<T: Serialize>(value: &T) -> Result<String, ConfigError> {
    toml::to_string_pretty(value).map_err(|error| ConfigError::Unwritable { cause: error.to_string() })
}

/// Compares a shipped file's text with the defaults of `T`: a sentence for every key that differs or is missing. For tests.
///
/// # Errors
///
/// When the text is no configuration of `T` at all; `name` stands for the file in messages.
pub fn differences_from_defaults<T>(name: &Path, text: &str) -> Result<Vec<String>, ConfigError>
where
    T: Default + Serialize + DeserializeOwned,
{
    let defaults = table_of(&T::default())?;
    let table = parse(name, text)?;
    let origin = Origin::File(name.to_owned());
    let settings: Vec<_> = layers::leaves(&table, true).into_iter().map(|leaf| (leaf, origin.clone())).collect();
    let value: T = merge(&defaults, &settings)?;
    let filled = table_of(&value)?;
    let mut differences = Vec::new();
    for leaf in layers::leaves(&defaults, false) {
        let key = leaf.key();
        if layers::find(&table, &leaf.path).is_none() {
            differences.push(format!("{key} is missing"));
        }
    }
    for leaf in layers::leaves(&filled, false) {
        if layers::find(&defaults, &leaf.path) != Some(&leaf.value) {
            let default = layers::find(&defaults, &leaf.path).map_or_else(|| "not set".to_owned(), layers::plain);
            differences.push(format!("{} is {}, the default is {default}", leaf.key(), layers::plain(&leaf.value)));
        }
    }
    Ok(differences)
}

fn table_of<T: Serialize>(value: &T) -> Result<Table, ConfigError> {
    Table::try_from(value).map_err(|error| ConfigError::Unwritable { cause: error.to_string() })
}

fn read_file(path: &Path) -> Result<Table, ConfigError> {
    let unreadable = |source| ConfigError::ReadFile { path: path.to_owned(), source };
    parse(path, &std::fs::read_to_string(path).map_err(unreadable)?)
}

fn parse(path: &Path, text: &str) -> Result<Table, ConfigError> {
    text.parse::<Table>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.get(..at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        ConfigError::Syntax { path: path.to_owned(), line, column, cause: error.message().trim().replace('\n', " ") }
    })
}

/// The first reading of `text` that fits; the fault of the likeliest when none does.
fn read_text<T: DeserializeOwned>(
    defaults: &Table,
    path: Vec<String>,
    text: &str,
    origin: &Origin,
) -> Result<Leaf, ConfigError> {
    let mut first_fault = None;
    for value in layers::readings(text, layers::find(defaults, &path)) {
        let leaf = Leaf { path: path.clone(), value };
        match explain::fault::<T>(defaults, &leaf, origin) {
            None => return Ok(leaf),
            Some(fault) => {
                first_fault.get_or_insert(fault);
            }
        }
    }
    Err(first_fault.unwrap_or_else(|| ConfigError::MalformedKey { key: path.join("."), origin: origin.clone() }))
}

/// Whether a variable that fits no key looks like somebody else's: one name, and no slip of ours.
fn is_foreign(defaults: &Table, setting: &Result<Leaf, ConfigError>) -> bool {
    match setting {
        Err(ConfigError::UnknownKey { key, suggestion, .. }) => {
            let slip = explain::nearest(key, defaults.keys().map(String::as_str)).is_some();
            !key.contains('.') && !slip && suggestion.as_ref().is_none_or(|near| near.contains('.'))
        }
        _ => false,
    }
}

fn merge<T>(defaults: &Table, settings: &[(Leaf, Origin)]) -> Result<T, ConfigError>
where
    T: Serialize + DeserializeOwned,
{
    let mut merged = defaults.clone();
    for (leaf, _) in settings {
        layers::set(&mut merged, leaf);
    }
    let fault = || settings.iter().find_map(|(leaf, origin)| explain::fault::<T>(defaults, leaf, origin));
    let value: T = merged.try_into().map_err(|error: toml::de::Error| {
        fault().unwrap_or_else(|| ConfigError::Inconsistent { cause: error.message().trim().to_owned() })
    })?;
    // A struct without `deny_unknown_fields` swallows what it does not know: then the key is not written out again.
    let written = table_of(&value)?;
    let swallowed =
        |(leaf, _): &&(Leaf, Origin)| layers::find(&written, &leaf.path).is_none() && !leaf.value.is_table();
    match settings.iter().find(swallowed) {
        Some((leaf, origin)) => Err(explain::unknown_key(defaults, leaf, "", &[], origin)),
        None => Ok(value),
    }
}

fn origins_of<T: Serialize>(
    value: &T,
    settings: &[(Leaf, Origin)],
) -> Result<Vec<(String, String, Origin)>, ConfigError> {
    let row = |leaf: Leaf| {
        let setter = settings.iter().rev().find(|(setting, _)| leaf.path.starts_with(&setting.path));
        let origin = setter.map_or(Origin::Default, |(_, origin)| origin.clone());
        let key = leaf.key();
        let shown = explain::shown(&key, &leaf.value, false);
        (key, shown, origin)
    };
    Ok(layers::leaves(&table_of(value)?, false).into_iter().map(row).collect())
}

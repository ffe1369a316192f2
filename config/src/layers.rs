//! Tables, leaves and keys: the plain mechanics of merging.

use toml::{Table, Value};

/// A value to set, and its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leaf {
    pub(crate) path: Vec<String>,
    pub(crate) value: Value,
}

impl Leaf {
    pub(crate) fn key(&self) -> String {
        self.path.join(".")
    }
}

/// All values of a table that are no tables themselves. With `keep_empty`, empty tables count as values: in a file they are
/// an attempt to set a section, which may not exist.
pub(crate) fn leaves(table: &Table, keep_empty: bool) -> Vec<Leaf> {
    fn walk(table: &Table, path: &mut Vec<String>, keep_empty: bool, found: &mut Vec<Leaf>) {
        for (name, value) in table {
            path.push(name.clone());
            match value {
                Value::Table(inner) if !(inner.is_empty() && keep_empty) => walk(inner, path, keep_empty, found),
                value => found.push(Leaf { path: path.clone(), value: value.clone() }),
            }
            path.pop();
        }
    }
    let mut found = Vec::new();
    walk(table, &mut Vec::new(), keep_empty, &mut found);
    found
}

pub(crate) fn find<'a>(table: &'a Table, path: &[String]) -> Option<&'a Value> {
    let (last, above) = path.split_last()?;
    let mut table = table;
    for name in above {
        table = table.get(name)?.as_table()?;
    }
    table.get(last)
}

/// Sets a leaf and makes the tables above it. A single value in the way is replaced: the struct refuses that later, and the
/// explanation names it.
pub(crate) fn set(table: &mut Table, leaf: &Leaf) {
    let Some((last, above)) = leaf.path.split_last() else { return };
    let mut table = table;
    for name in above {
        let entry = table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
        if !entry.is_table() {
            *entry = Value::Table(Table::new());
        }
        let Value::Table(inner) = entry else { return };
        table = inner;
    }
    let keeps_table = matches!(&leaf.value, Value::Table(new) if new.is_empty());
    if !(keeps_table && table.get(last).is_some_and(Value::is_table)) {
        table.insert(last.clone(), leaf.value.clone());
    }
}

/// `a.b.c` in parts; `None` when a part is empty.
pub(crate) fn split_key(key: &str) -> Option<Vec<String>> {
    let parts: Vec<String> = key.split('.').map(|part| part.trim().to_owned()).collect();
    parts.iter().all(|part| !part.is_empty()).then_some(parts)
}

/// `THERMOCLINE_A__B_C` in parts: `a`, `b_c`. `None` for another program's variable.
pub(crate) fn split_variable(name: &str) -> Option<Vec<String>> {
    let rest = name.strip_prefix("THERMOCLINE_")?;
    split_key(&rest.to_lowercase().replace("__", "."))
}

/// Follows the known spelling where only `-` and `_` differ: a variable's name cannot contain `-`.
pub(crate) fn respell(known: &Table, path: &mut [String]) {
    let mut table = Some(known);
    for part in path {
        let Some(here) = table else { return };
        if !here.contains_key(part.as_str())
            && let Some(name) = here.keys().find(|name| name.replace('-', "_") == *part)
        {
            part.clone_from(name);
        }
        table = here.get(part.as_str()).and_then(Value::as_table);
    }
}

/// What a text from the environment or the command line may mean, likeliest first. The default's type decides: text stays
/// text where text is expected.
pub(crate) fn readings(text: &str, default: Option<&Value>) -> Vec<Value> {
    let raw = Value::String(text.to_owned());
    if matches!(default, Some(Value::String(_))) {
        return vec![raw];
    }
    let mut readings = Vec::new();
    if let Ok(mut table) = format!("x = {text}\n").parse::<Table>()
        && table.len() == 1
    {
        readings.extend(table.remove("x"));
    }
    readings.push(raw);
    if matches!(default, Some(Value::Array(_)) | None) && !text.trim().is_empty() {
        let items = text.split(',').map(|item| Value::String(item.trim().to_owned()));
        readings.push(Value::Array(items.collect()));
    }
    readings
}

/// A value for people: text without quotes, the rest as TOML.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

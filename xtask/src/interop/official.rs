//! BookKeeper's own tests, from its published test jar, against our bookies: `tests/interop/official`.
//!
//! Maven compiles and fetches; each class then runs in a JVM of its own, started here, so that a class that hangs ends with its
//! time and takes no other with it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use super::results::{self, Results};
use super::suite::{self, Class};
use super::table::{self, Row};
use super::{Fetched, PROGRAM, fetch, target};
use crate::ci;
use crate::lanes::{Context, Outcome};
use crate::run::Counts;

const PROJECT: &str = "tests/interop/official";
const PAUSE: Duration = Duration::from_millis(100);
/// Time for a JVM to end its bookies after it was asked to end.
const GRACE: Duration = Duration::from_secs(10);

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// BookKeeper's bookies instead of ours.
    pub(super) apache: bool,
    /// Only what CI runs, compared with the documentation.
    pub(super) fast: bool,
    /// Only these classes.
    pub(super) only: Vec<String>,
    /// Write the table afterwards.
    pub(super) write_docs: bool,
}

/// Runs classes and counts their methods.
pub(super) fn official(context: &Context<'_>, options: &Options, counts: &mut Counts) -> Result<Outcome, String> {
    let suite = suite::read(context.root)?;
    let wanted = wanted(&suite, options)?;
    let folder = target(context.root).join("interop-official");
    let properties = [format!("-Dbuild.dir={}", folder.display())];
    if let Fetched::Unreachable(reason) = fetch(context.root, PROJECT, &properties, "process-test-classes")? {
        return Ok(Outcome::Skipped(reason));
    }
    if !options.apache {
        context.cargo(PROGRAM, &[], counts)?;
    }
    let run = Run { folder: &folder, program: target(context.root).join("debug/thermocline"), apache: options.apache };
    let mut failed = Vec::new();
    for class in wanted {
        let results = run.class(class)?;
        let took_too_long = if results.ended { "" } else { ", and then its time was over" };
        println!("{:<45} {} passed{took_too_long}", class.name, results.cell());
        for (method, why) in &results.failed {
            println!("    {method}: {why}");
        }
        counts.add(results.counts());
        if results.counts().failed > 0 {
            failed.push(class.name.clone());
        } else if options.fast {
            agrees(context.root, class, &results)?;
        }
    }
    if options.write_docs {
        write_docs(context.root, &folder, suite)?;
    }
    if failed.is_empty() {
        Ok(Outcome::Done)
    } else {
        Err(format!("not everything passed in {}; logs are in {}", failed.join(", "), run.results().display()))
    }
}

fn wanted<'a>(suite: &'a [Class], options: &Options) -> Result<Vec<&'a Class>, String> {
    for name in &options.only {
        let known = suite.iter().find(|class| class.name == *name);
        let class = known.ok_or_else(|| format!("{} has no class {name}", suite::LIST))?;
        if let Some(reason) = &class.none {
            return Err(format!("{name} is not run: {reason}"));
        }
    }
    let runs = suite.iter().filter(|class| class.none.is_none() && (class.fast || !options.fast));
    Ok(runs.filter(|class| options.only.is_empty() || options.only.contains(&class.name)).collect())
}

/// Where a run's results and logs are, and what it runs with.
struct Run<'a> {
    folder: &'a Path,
    program: PathBuf,
    apache: bool,
}

impl Run<'_> {
    fn results(&self) -> PathBuf {
        results_folder(self.folder, self.apache)
    }

    /// Runs one class to its end or to that of its time.
    fn class(&self, class: &Class) -> Result<Results, String> {
        let told = |what: &str, error: std::io::Error| format!("{what} for {}: {error}", class.name);
        let file = self.results().join(format!("{}.tsv", class.name));
        let data = self.folder.join("data").join(&class.name);
        fs::create_dir_all(self.results()).map_err(|error| told("make the folder of results", error))?;
        fs::create_dir_all(&data).map_err(|error| told("make the folder of data", error))?;
        let _ = fs::remove_file(&file);
        let log = File::create(file.with_extension("log")).map_err(|error| told("make the log", error))?;
        let both = log.try_clone().map_err(|error| told("share the log", error))?;
        let mut command = self.command(&data)?;
        command.arg(&file).arg(class.full_name());
        command.args(class.left_out.iter().map(|(method, _)| method));
        let mut child = command.stdout(log).stderr(both).spawn().map_err(|error| told("start java", error))?;
        let ended =
            ends_within(&mut child, Duration::from_secs(60 * class.minutes)).map_err(|error| told("wait", error))?;
        let _ = fs::remove_dir_all(&data);
        if ended {
            let mut lines =
                fs::OpenOptions::new().append(true).open(&file).map_err(|error| told("read results", error))?;
            writeln!(lines, "{}", results::END).map_err(|error| told("note the end", error))?;
        }
        Results::read(&file).ok_or_else(|| format!("{} has no results", class.name))
    }

    fn command(&self, data: &Path) -> Result<Command, String> {
        let list = self.folder.join("classpath");
        let jars = fs::read_to_string(&list).map_err(|error| format!("read {}: {error}", list.display()))?;
        // What stands before BookKeeper's own classes comes first.
        let ours = if self.apache { String::new() } else { format!("{}:", self.folder.join("test-classes").display()) };
        let mut command = Command::new("java");
        command.args(["-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:TieredStopAtLevel=1"]);
        command.args(["-Djava.net.preferIPv4Stack=true", "-Dzookeeper.admin.enableServer=false"]);
        command.args(["-Dzookeeper.4lw.commands.whitelist=*"]);
        command.arg(format!("-Djava.io.tmpdir={}", data.display()));
        command.arg(format!("-Dthermocline={}", self.program.display()));
        command.arg("-cp").arg(format!("{ours}{}:{}", self.folder.join("classes").display(), jars.trim()));
        command.arg("thermocline.official.RunClass").current_dir(data);
        Ok(command)
    }
}

fn results_folder(folder: &Path, apache: bool) -> PathBuf {
    folder.join(if apache { "apache" } else { "thermocline" })
}

/// Waits; `true` when it ended well in time. Else it is ended, with what it has started.
fn ends_within(child: &mut Child, limit: Duration) -> std::io::Result<bool> {
    if let Some(well) = wait(child, limit)? {
        return Ok(well);
    }
    // Not SIGKILL at first, so that it ends its bookies.
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
    if wait(child, GRACE)?.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok(false)
}

fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<bool>> {
    let started = ci::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if started.elapsed() > limit {
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}

/// That the documentation tells of `class` what has just been seen.
fn agrees(root: &Path, class: &Class, results: &Results) -> Result<(), String> {
    let page = fs::read_to_string(root.join(table::PAGE)).map_err(|error| format!("read {}: {error}", table::PAGE))?;
    match table::cell(&page, &class.name) {
        Some(cell) if cell == results.cell() => Ok(()),
        cell => Err(format!(
            "{} says {} of {}, and {} passed; `cargo xtask interop --official --only {} --write-docs` writes it",
            table::PAGE,
            cell.unwrap_or("nothing"),
            class.name,
            results.cell(),
            class.name
        )),
    }
}

fn write_docs(root: &Path, folder: &Path, suite: Vec<Class>) -> Result<(), String> {
    let read = |class: &Class, apache: bool| {
        if class.none.is_some() {
            return Ok(None);
        }
        let results = Results::read(&results_folder(folder, apache).join(format!("{}.tsv", class.name)));
        let option = if apache { " --bookies apache" } else { "" };
        let missing =
            || format!("no results of {0}; run `cargo xtask interop --official{option} --only {0}`", class.name);
        results.ok_or_else(missing).map(Some)
    };
    let mut rows = Vec::new();
    for class in suite {
        let (ours, control) = (read(&class, false)?, read(&class, true)?);
        rows.push(Row { class, ours, control });
    }
    let page = root.join(table::PAGE);
    let text = fs::read_to_string(&page).map_err(|error| format!("read {}: {error}", table::PAGE))?;
    fs::write(&page, table::replaced(&text, &rows)?).map_err(|error| format!("write {}: {error}", table::PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, fast: bool, none: Option<&str>) -> Class {
        Class { name: name.to_owned(), fast, none: none.map(str::to_owned), ..Class::default() }
    }

    #[test]
    fn what_is_wanted_is_run() {
        let suite = [class("a", true, None), class("b", false, None), class("c", false, Some("why"))];
        let names = |options: &Options| {
            wanted(&suite, options).map(|classes| classes.iter().map(|class| class.name.clone()).collect::<Vec<_>>())
        };
        let only = |name: &str| Options { only: vec![name.to_owned()], ..Options::default() };
        assert_eq!(names(&Options::default()), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names(&Options { fast: true, ..Options::default() }), Ok(vec!["a".to_owned()]));
        assert_eq!(names(&only("b")), Ok(vec!["b".to_owned()]));
        assert!(names(&only("c")).is_err_and(|error| error.contains("why")) && names(&only("d")).is_err());
    }

    #[test]
    fn a_process_that_does_not_end_is_ended() {
        let start = |words: [&str; 2]| Command::new(words[0]).arg(words[1]).spawn().unwrap();
        assert!(!ends_within(&mut start(["sleep", "600"]), Duration::from_millis(1)).unwrap());
        assert!(ends_within(&mut start(["sleep", "0"]), Duration::from_secs(60)).unwrap());
        assert!(!ends_within(&mut start(["false", ""]), Duration::from_secs(60)).unwrap());
    }
}

//! The question before something is gone for good.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::Fault;

/// Makes sure that whoever asks means `name`: it was given with `--confirm`, or is typed now, when there is a terminal to ask at.
/// `what` says in a sentence what will happen.
///
/// # Errors
/// Exit code 2 when another name was given, or when nobody can be asked. Nothing has been changed then.
pub(crate) fn confirm(what: &str, kind: &str, name: &str, given: Option<&str>) -> Result<(), Fault> {
    match given {
        Some(given) => decide(kind, name, given),
        None if std::io::stdin().is_terminal() => {
            eprint!("{what}\nType the {kind} to go on ({name}): ");
            // What cannot be shown is still asked for.
            let _ = std::io::stderr().flush();
            let mut line = String::new();
            let read = std::io::stdin().lock().read_line(&mut line);
            read.map_err(|error| Fault::failed(format!("read the answer: {error}")))?;
            decide(kind, name, line.trim())
        }
        None => Err(Fault::usage(format!(
            "{what} Nobody can be asked here, so say that you mean it: --confirm {name}. Nothing was changed"
        ))),
    }
}

fn decide(kind: &str, name: &str, given: &str) -> Result<(), Fault> {
    if given == name {
        return Ok(());
    }
    Err(Fault::usage(format!("{given:?} is not the {kind}, which is {name}. Nothing was changed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_name_confirms() {
        assert!(confirm("All of it goes.", "cluster's name", "logs", Some("logs")).is_ok());
        for wrong in ["", "Logs", "logs ", "yes", "y"] {
            let fault = confirm("All of it goes.", "cluster's name", "logs", Some(wrong)).unwrap_err();
            assert_eq!(fault.exit_code(), 2);
            assert!(fault.to_string().contains("Nothing was changed"), "{fault}");
        }
    }
}

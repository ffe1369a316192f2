//! `thermocline config show`.

use serde_json::json;

use crate::args::{ConfigArgs, ConfigCommand, Output};
use crate::{Fault, Settings, output};

pub(super) fn run(command: ConfigCommand) -> Result<(), Fault> {
    let ConfigCommand::Show { config, output } = command;
    show(&config, output)
}

fn show(args: &ConfigArgs, form: Output) -> Result<(), Fault> {
    let loaded = Settings::load(args, &[])?;
    match form {
        Output::Json => {
            let rows = loaded.rows();
            let rows: Vec<_> =
                rows.iter().map(|row| json!({ "key": row.key, "value": row.value, "origin": row.origin })).collect();
            output::json(&json!(rows));
        }
        Output::Table => {
            let rows: Vec<Vec<String>> =
                loaded.rows().into_iter().map(|row| vec![row.key, row.value, row.origin]).collect();
            println!("{}", output::table(&["key", "value", "from"], &rows, &[]));
        }
    }
    Ok(())
}

//! `thermocline config show`.

use serde_json::json;

use ::config::Row;

use crate::args::{ConfigCommand, Output, Role};
use crate::settings::{self, BookieSettings, GatewaySettings, OffloaderSettings};
use crate::{Fault, Settings, output};

pub(super) fn run(command: ConfigCommand) -> Result<(), Fault> {
    let ConfigCommand::Show { role, config, output } = command;
    let rows = match role {
        Role::Standalone => settings::load::<Settings>(&config, &[])?.rows(),
        Role::Bookie => settings::load::<BookieSettings>(&config, &[])?.rows(),
        Role::Gateway => settings::load::<GatewaySettings>(&config, &[])?.rows(),
        Role::Offloader => settings::load::<OffloaderSettings>(&config, &[])?.rows(),
    };
    show(rows, output)
}

fn show(rows: Vec<Row>, form: Output) -> Result<(), Fault> {
    match form {
        Output::Json => {
            let rows: Vec<_> =
                rows.iter().map(|row| json!({ "key": row.key, "value": row.value, "origin": row.origin })).collect();
            output::json(&json!(rows));
        }
        Output::Table => {
            let rows: Vec<Vec<String>> = rows.into_iter().map(|row| vec![row.key, row.value, row.origin]).collect();
            println!("{}", output::table(&["key", "value", "from"], &rows, &[]));
        }
    }
    Ok(())
}

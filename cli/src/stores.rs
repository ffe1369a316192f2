//! Metadata stores as administrators name them: opened without making a cluster, or a directory, by the way.

use std::path::Path;
use std::sync::Arc;

use metadata::{ErrorKind, MetadataStore};

use crate::Fault;
use crate::fault::chain;

/// Opens a store that must be there already.
///
/// # Errors
/// Exit code 2 when it is not, when a process has it open, or when `uri` names none; 1 when it does not answer.
pub(crate) async fn open(uri: &str) -> Result<Arc<dyn MetadataStore>, Fault> {
    if missing_directory(uri) {
        let text = "there is no metadata in this directory; write embedded:/path as the node has it (DIR/metadata)";
        return Err(Fault::usage(format!("metadata {uri}: {text}")));
    }
    open_or_make(uri).await
}

/// Opens a store; an embedded one is made when it is missing.
///
/// # Errors
/// As [`open`].
pub(crate) async fn open_or_make(uri: &str) -> Result<Arc<dyn MetadataStore>, Fault> {
    metadata::open(uri).await.map_err(|error| fault(uri, &error))
}

/// Whether `uri` names embedded metadata that is not there.
pub(crate) fn missing_directory(uri: &str) -> bool {
    // What every such directory has.
    uri.strip_prefix("embedded:").is_some_and(|dir| !dir.is_empty() && !Path::new(dir).join("CURRENT").is_file())
}

/// An error of a store as a sentence that names the store, with its exit code.
pub(crate) fn fault(uri: &str, error: &metadata::Error) -> Fault {
    fault_of(&format!("metadata {}", metadata::shown(uri)), error)
}

/// As [`fault`], with what was done in the place of the store's name.
pub(crate) fn fault_of(what: &str, error: &metadata::Error) -> Fault {
    let sentence = format!("{what}: {}", chain(error));
    match error.kind() {
        ErrorKind::InUse => Fault::usage(format!("{sentence}; stop the node first")),
        ErrorKind::Refused | ErrorKind::Invalid | ErrorKind::Unsupported => Fault::usage(sentence),
        _ => Fault::failed(sentence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_embedded_metadata_can_be_missing() {
        assert!(missing_directory("embedded:/no/such/place"));
        assert!(!missing_directory("etcd://h:1") && !missing_directory("memory:") && !missing_directory("embedded:"));
    }
}

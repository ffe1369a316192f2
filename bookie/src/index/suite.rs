//! What every [`Index`] must do; each implementation runs it.

use super::{Index, Write};

/// Runs the suite on an empty index.
///
/// # Panics
/// When the index breaks a rule.
pub async fn run(index: &dyn Index) {
    let put = |key: &str, value: &str| Write::Put(key.into(), value.into());
    assert_eq!(index.get(b"a").await.expect("get"), None);
    assert!(index.scan(b"", None, 10).await.expect("scan").is_empty());
    let batch =
        vec![put("a1", "x"), put("a2", "y"), put("b1", "z"), put("a1", "later wins"), put("a", "short"), put("c", "")];
    index.write(batch).await.expect("write");
    assert_eq!(index.get(b"a1").await.expect("get").as_deref(), Some(&b"later wins"[..]));
    assert_eq!(index.get(b"c").await.expect("get").as_deref(), Some(&b""[..]), "an empty value is a value");

    let keys = |rows: Vec<(Vec<u8>, Vec<u8>)>| -> Vec<String> {
        rows.into_iter().map(|(key, _)| String::from_utf8_lossy(&key).into_owned()).collect()
    };
    assert_eq!(keys(index.scan(b"a", None, 10).await.expect("scan")), ["a", "a1", "a2"]);
    assert_eq!(keys(index.scan(b"a", None, 2).await.expect("scan")), ["a", "a1"]);
    assert_eq!(keys(index.scan(b"a", Some(b"a1"), 10).await.expect("scan")), ["a2"]);
    assert_eq!(
        keys(index.scan(b"a", Some(b"a0"), 10).await.expect("scan")),
        ["a1", "a2"],
        "after a key that is not there"
    );
    assert!(index.scan(b"a", Some(b"a2"), 10).await.expect("scan").is_empty());
    assert!(index.scan(b"b2", None, 10).await.expect("scan").is_empty());

    index
        .write(vec![Write::Delete(b"a1".to_vec()), Write::Delete(b"never".to_vec()), put("b1", "w")])
        .await
        .expect("write");
    assert_eq!(keys(index.scan(b"", None, 10).await.expect("scan")), ["a", "a2", "b1", "c"]);
    assert_eq!(index.get(b"b1").await.expect("get").as_deref(), Some(&b"w"[..]));
    let clear = ["a", "a2", "b1", "c"].map(|key| Write::Delete(key.into()));
    index.write(clear.to_vec()).await.expect("clear");
}

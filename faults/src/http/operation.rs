//! Which operation a request is: by method, path and query, as S3 has it.

use std::fmt;

/// A kind of request to an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// An object is written in one request.
    Put,
    /// An object is copied.
    Copy,
    /// An object or a range of it is read.
    Get,
    /// An object is looked up.
    Head,
    /// Keys are listed.
    List,
    /// One object is removed.
    Delete,
    /// Many objects are removed.
    DeleteMany,
    /// An upload in parts begins.
    CreateMultipart,
    /// A part is uploaded.
    UploadPart,
    /// The parts are joined to an object.
    CompleteMultipart,
    /// An upload and its parts are thrown away.
    AbortMultipart,
    /// The parts of an upload are listed.
    ListParts,
    /// The unfinished uploads are listed.
    ListUploads,
    /// Anything else.
    Other,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// The bucket, empty when none is named.
    pub bucket: String,
    /// The key, or for a listing its prefix, as on the wire (percent-encoded).
    pub key: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// The number of a part.
    pub part: Option<u32>,
    /// The condition of a write: the `If-None-Match` or `If-Match` header.
    pub condition: Option<String>,
}

impl Request {
    pub(super) fn of(head: &http::request::Parts) -> Self {
        let path = head.uri.path().trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let query = Query(head.uri.query().unwrap_or(""));
        let header = |name: http::HeaderName| head.headers.get(name)?.to_str().ok().map(str::to_owned);
        let copies = head.headers.contains_key("x-amz-copy-source");
        let operation = operation(&head.method, key, copies, query);
        let key = if key.is_empty() { query.value("prefix").unwrap_or("") } else { key };
        Self {
            operation,
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            range: header(http::header::RANGE),
            part: query.value("partNumber").and_then(|number| number.parse().ok()),
            condition: header(http::header::IF_NONE_MATCH).or_else(|| header(http::header::IF_MATCH)),
        }
    }
}

fn operation(method: &http::Method, key: &str, copies: bool, query: Query<'_>) -> Operation {
    let upload = query.has("uploadId");
    match (method.as_str(), key.is_empty()) {
        ("PUT", false) if upload => Operation::UploadPart,
        ("PUT", false) if copies => Operation::Copy,
        ("PUT", false) => Operation::Put,
        ("POST", false) if upload => Operation::CompleteMultipart,
        ("POST", false) if query.has("uploads") => Operation::CreateMultipart,
        ("POST", true) if query.has("delete") => Operation::DeleteMany,
        ("GET", false) if upload => Operation::ListParts,
        ("GET", false) => Operation::Get,
        ("GET", true) if query.has("uploads") => Operation::ListUploads,
        ("GET", true) if query.has("list-type") || query.has("prefix") => Operation::List,
        ("HEAD", false) => Operation::Head,
        ("DELETE", false) if upload => Operation::AbortMultipart,
        ("DELETE", false) => Operation::Delete,
        _ => Operation::Other,
    }
}

#[derive(Clone, Copy)]
struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    fn has(self, name: &str) -> bool {
        self.pairs().any(|(found, _)| found == name)
    }

    fn value(self, name: &str) -> Option<&'a str> {
        self.pairs().find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Request {
        let mut builder = http::Request::builder().method(method).uri(target);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        Request::of(&builder.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn requests_are_told_apart() {
        use Operation as O;
        for (method, target, expected) in [
            ("PUT", "/b/a/k", O::Put),
            ("GET", "/b/a/k", O::Get),
            ("GET", "/b/a/k?versionId=1", O::Get),
            ("HEAD", "/b/a/k", O::Head),
            ("DELETE", "/b/a/k", O::Delete),
            ("GET", "/b?list-type=2&prefix=a%2F", O::List),
            ("GET", "/b/?list-type=2", O::List),
            ("POST", "/b/?delete", O::DeleteMany),
            ("POST", "/b?delete=", O::DeleteMany),
            ("POST", "/b/k?uploads", O::CreateMultipart),
            ("POST", "/b/k?uploads=", O::CreateMultipart),
            ("PUT", "/b/k?partNumber=3&uploadId=x", O::UploadPart),
            ("POST", "/b/k?uploadId=x", O::CompleteMultipart),
            ("DELETE", "/b/k?uploadId=x", O::AbortMultipart),
            ("GET", "/b/k?uploadId=x", O::ListParts),
            ("GET", "/b?uploads", O::ListUploads),
            ("PUT", "/b", O::Other),
            ("HEAD", "/b", O::Other),
            ("GET", "/", O::Other),
        ] {
            assert_eq!(request(method, target, &[]).operation, expected, "{method} {target}");
        }
        assert_eq!(request("PUT", "/b/k", &[("x-amz-copy-source", "/b/a")]).operation, O::Copy);
    }

    #[test]
    fn their_parts_are_named() {
        let headers = [("range", "bytes=0-9"), ("if-none-match", "*")];
        let found = request("PUT", "/b/a%20b/k?partNumber=12&uploadId=x", &headers);
        assert_eq!((found.bucket.as_str(), found.key.as_str(), found.part), ("b", "a%20b/k", Some(12)));
        assert_eq!((found.range.as_deref(), found.condition.as_deref()), (Some("bytes=0-9"), Some("*")));
        assert_eq!(request("GET", "/b?list-type=2&prefix=a%2Fb", &[]).key, "a%2Fb");
    }
}

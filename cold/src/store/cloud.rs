//! How a cloud's store is reached: what stands in the URL, what the caller says, what the environment says, in this order.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use url::{Host, Url};

use super::StoreOptions;
use super::open::config;
use crate::error::{Error, ErrorKind, Result};

/// The key that signs requests.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// Its name, which is no secret.
    pub id: String,
    /// The secret.
    pub secret: String,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessKey({})", self.id)
    }
}

/// A checksum that is sent along with each write, for the store to verify.
///
/// None is sent unless asked for: some stores refuse requests that have one. What is in the store is verified by reading it back
/// in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumHeader {
    /// `x-amz-checksum-sha256`, known to most stores that know any.
    Sha256,
    /// `x-amz-checksum-crc64nvme`, cheap, known to newer ones.
    Crc64Nvme,
}

/// How a store of the S3 kind is reached. What is `None` comes from the environment, as for the cloud's own tools
/// (`AWS_ENDPOINT`, `AWS_REGION`, `AWS_ACCESS_KEY_ID` and so on); what stands in the store's URL wins over both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloudOptions {
    /// Where the store is, for stores other than AWS.
    pub endpoint: Option<String>,
    /// The region requests are signed for.
    pub region: Option<String>,
    /// The key that signs requests.
    pub access_key: Option<AccessKey>,
    /// Whether plain HTTP may be spoken to another machine; to this one it always may.
    pub allow_http: Option<bool>,
    /// Whether the bucket stands in the host's name instead of the path.
    pub bucket_in_host: Option<bool>,
    /// The checksum that writes carry.
    pub checksum: Option<ChecksumHeader>,
    /// How often the client repeats a single request that failed; 5 when not given.
    pub request_retries: Option<usize>,
}

/// The parameters a URL may have, for messages.
const PARAMETERS: &str =
    "endpoint, region, allow_http=true, addressing=path or host, checksum=sha256 or crc64nvme or none";

impl CloudOptions {
    /// These options, with what the parameters of an `s3` URL say in their place.
    pub(super) fn with_parameters(mut self, url: &Url, name: &str) -> Result<Self> {
        for (parameter, value) in url.query_pairs() {
            let refuse = |what: &str| Err(config(name, format_args!("parameter {parameter}={value}: {what}")));
            match (&*parameter, &*value) {
                ("endpoint", endpoint) => match Url::parse(endpoint) {
                    Ok(endpoint) if endpoint.username().is_empty() && endpoint.password().is_none() => {
                        self.endpoint = Some(value.trim_end_matches('/').to_owned());
                    }
                    _ => return Err(config(name, "parameter endpoint: write it like endpoint=https://host:port")),
                },
                ("region", "") => return refuse("name a region"),
                ("region", region) => self.region = Some(region.to_owned()),
                ("allow_http", "true") => self.allow_http = Some(true),
                ("allow_http", "false") => self.allow_http = Some(false),
                ("addressing", "path") => self.bucket_in_host = Some(false),
                ("addressing", "host") => self.bucket_in_host = Some(true),
                ("checksum", "none") => self.checksum = None,
                ("checksum", "sha256") => self.checksum = Some(ChecksumHeader::Sha256),
                ("checksum", "crc64nvme") => self.checksum = Some(ChecksumHeader::Crc64Nvme),
                ("allow_http" | "addressing" | "checksum", _) => return refuse(&format!("known are {PARAMETERS}")),
                // The value may be a secret, so it is not shown.
                _ => {
                    let what = format_args!(
                        "parameter {parameter} is not known; known are {PARAMETERS}. Keys do not belong in a URL: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                    );
                    return Err(config(name, what));
                }
            }
        }
        Ok(self)
    }
}

/// The client of a cloud's store. Its own retries end before our deadline of the request, so that its error is the one people see.
pub(super) fn open(url: &Url, name: &str, options: &StoreOptions) -> Result<Arc<dyn ObjectStore>> {
    if url.host_str().is_none_or(str::is_empty) {
        let form = if url.scheme() == "az" { "az://container/path" } else { "scheme://bucket/path" };
        return Err(config(name, format_args!("it names no bucket; write it as {form}")));
    }
    if url.scheme() != "s3" && url.query().is_some() {
        return Err(config(name, "it takes no parameters; set the environment variables of its cloud"));
    }
    let retry_timeout = options.request_deadline / 2;
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: options.cloud.request_retries.unwrap_or(5),
        retry_timeout,
    };
    let client = ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(5))
        .with_read_timeout(Duration::from_secs(15))
        .with_timeout(retry_timeout);
    // The path is ours to add to keys; the clients refuse some URLs that have one.
    let bucket = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
    let built: object_store::Result<Arc<dyn ObjectStore>> = match url.scheme() {
        "s3" => {
            let cloud = options.cloud.clone().with_parameters(url, name)?;
            s3(&bucket, name, cloud, client)?.with_retry(retry).build().map(|store| Arc::new(store) as _)
        }
        "gs" => GoogleCloudStorageBuilder::from_env()
            .with_url(bucket)
            .with_retry(retry)
            .with_client_options(client)
            .build()
            .map(|store| Arc::new(store) as _),
        _ => {
            let client = client.with_allow_http(says_true("AZURE_ALLOW_HTTP"));
            MicrosoftAzureBuilder::from_env()
                .with_url(bucket)
                .with_retry(retry)
                .with_client_options(client)
                .build()
                .map(|store| Arc::new(store) as _)
        }
    };
    built.map_err(|error| {
        let hint = match url.scheme() {
            "s3" => {
                "set AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT or ?endpoint=… for stores other than AWS"
            }
            "gs" => "set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
            _ => "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        };
        let what = format!("open object store {name}: the settings are not complete; {hint}");
        Error::with_source(ErrorKind::Config, what, error)
    })
}

fn s3(bucket: &str, name: &str, cloud: CloudOptions, client: ClientOptions) -> Result<AmazonS3Builder> {
    // Removing many objects in one request carries a checksum that some stores refuse, and only single ones are ever removed.
    let mut builder = AmazonS3Builder::from_env().with_url(bucket).with_disable_bulk_delete(true);
    let mut allow_http = cloud.allow_http.unwrap_or_else(|| says_true("AWS_ALLOW_HTTP"));
    if let Some(endpoint) = &cloud.endpoint {
        // The more special variable of the environment would win over the plain one.
        builder = builder
            .with_config(AmazonS3ConfigKey::Endpoint, endpoint)
            .with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    let endpoint = cloud.endpoint.or_else(|| {
        builder
            .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
            .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint))
    });
    if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.starts_with("http://")) {
        if Url::parse(&endpoint).is_ok_and(|endpoint| is_this_machine(&endpoint)) {
            allow_http = true;
        } else if !allow_http {
            let what = format_args!(
                "endpoint {endpoint} is plain HTTP to another machine, which others can read: use https, or say allow_http=true"
            );
            return Err(config(name, what));
        }
    }
    if let Some(region) = cloud.region {
        builder = builder.with_region(region);
    }
    if let Some(key) = cloud.access_key {
        builder = builder.with_access_key_id(key.id).with_secret_access_key(key.secret);
    }
    if let Some(in_host) = cloud.bucket_in_host {
        builder = builder.with_virtual_hosted_style_request(in_host);
    }
    match cloud.checksum {
        Some(ChecksumHeader::Sha256) => builder = builder.with_checksum_algorithm(Checksum::SHA256),
        Some(ChecksumHeader::Crc64Nvme) => builder = builder.with_checksum_algorithm(Checksum::CRC64NVME),
        None => {}
    }
    Ok(builder.with_client_options(client.with_allow_http(allow_http)))
}

fn is_this_machine(endpoint: &Url) -> bool {
    match endpoint.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn says_true(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<CloudOptions> {
        let given = CloudOptions { region: Some("given".to_owned()), ..CloudOptions::default() };
        given.with_parameters(&Url::parse(url).unwrap(), "s3://bucket")
    }

    #[test]
    fn the_parameters_of_a_url_win() {
        assert_eq!(read("s3://bucket/path").unwrap().region.as_deref(), Some("given"));
        let url = "s3://bucket/path?endpoint=http://127.0.0.1:4566/&region=eu-west-1&allow_http=true&addressing=host&checksum=sha256";
        let expected = CloudOptions {
            endpoint: Some("http://127.0.0.1:4566".to_owned()),
            region: Some("eu-west-1".to_owned()),
            allow_http: Some(true),
            bucket_in_host: Some(true),
            checksum: Some(ChecksumHeader::Sha256),
            ..CloudOptions::default()
        };
        assert_eq!(read(url).unwrap(), expected);
    }

    #[test]
    fn unknown_parameters_are_refused_and_secrets_not_shown() {
        for (query, advice) in [
            ("endpoint=nonsense", "endpoint=https://host:port"),
            ("endpoint=http://user:hidden@host", "endpoint=https://host:port"),
            ("checksum=md5", "checksum=sha256"),
            ("addressing=virtual", "addressing=path or host"),
            ("allow_http=yes", "allow_http=true"),
            ("region=", "name a region"),
            ("secret_access_key=hidden", "Keys do not belong in a URL"),
        ] {
            let error = read(&format!("s3://bucket/?{query}")).unwrap_err().to_string();
            assert!(error.contains(advice) && !error.contains("hidden"), "{error}");
        }
        let key = AccessKey { id: "id".to_owned(), secret: "hidden".to_owned() };
        assert!(!format!("{key:?}").contains("hidden"));
    }

    #[test]
    fn plain_http_is_for_this_machine() {
        let open = |endpoint: &str, allow_http| {
            let cloud = CloudOptions {
                endpoint: Some(endpoint.to_owned()),
                region: Some("us-east-1".to_owned()),
                access_key: Some(AccessKey { id: "id".to_owned(), secret: "secret".to_owned() }),
                allow_http,
                ..CloudOptions::default()
            };
            s3("s3://bucket", "s3://bucket", cloud, ClientOptions::new()).map(drop)
        };
        for endpoint in ["http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9", "https://elsewhere"] {
            open(endpoint, Some(false)).unwrap();
        }
        let error = open("http://elsewhere:9", Some(false)).unwrap_err();
        assert!(error.to_string().contains("plain HTTP to another machine"), "{error}");
        open("http://elsewhere:9", Some(true)).unwrap();
    }
}

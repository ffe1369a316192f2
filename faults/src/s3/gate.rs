//! What a request passes before it is an S3 operation: signature, region, headers that this server does not take, its clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, StatusCode};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{HttpError, HttpResponse, S3Error, S3ErrorCode, S3Result, s3_error};

use super::World;
use super::service::Objects;

#[derive(Clone)]
pub(super) struct Gate {
    service: S3Service,
    world: Arc<World>,
}

impl Gate {
    pub(super) fn new(world: Arc<World>) -> Self {
        let mut builder = S3ServiceBuilder::new(Objects::new(Arc::clone(&world)));
        let options = &world.options;
        builder.set_auth(SimpleAuth::from_single(options.access_key.as_str(), options.secret_key.as_str()));
        builder.set_access(Access { region: options.region.clone(), checksum_headers: options.checksum_headers });
        Self { service: builder.build(), world }
    }
}

impl hyper::service::Service<http::Request<hyper::body::Incoming>> for Gate {
    type Response = HttpResponse;
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send>>;

    fn call(&self, request: http::Request<hyper::body::Incoming>) -> Self::Future {
        let answer = hyper::service::Service::call(&self.service, request);
        let world = Arc::clone(&self.world);
        Box::pin(async move {
            let mut answer = answer.await?;
            if world.options.clock_ahead_ms != 0
                && let Some(date) = http_date(world.now_ms())
            {
                answer.headers_mut().insert(http::header::DATE, date);
            }
            Ok(answer)
        })
    }
}

fn http_date(wall_ms: u64) -> Option<HeaderValue> {
    let mut text = Vec::new();
    timestamp(wall_ms).format(TimestampFormat::HttpDate, &mut text).ok()?;
    HeaderValue::from_bytes(&text).ok()
}

pub(super) fn timestamp(wall_ms: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(wall_ms))
}

struct Access {
    region: Option<String>,
    checksum_headers: bool,
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        if cx.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "Access Denied: the request is not signed"));
        }
        if let (Some(expected), Some(found)) = (&self.region, signed_region(cx.headers()))
            && expected != found
        {
            return Err(wrong_region(expected, found));
        }
        let refused = cx.headers().keys().find(|name| {
            name.as_str().starts_with("x-amz-checksum-") || name.as_str() == "x-amz-sdk-checksum-algorithm"
        });
        match refused {
            Some(name) if !self.checksum_headers => Err(s3_error!(
                NotImplemented,
                "A header you provided implies functionality that is not implemented: {name}"
            )),
            _ => Ok(()),
        }
    }
}

/// The region in `Credential=key/date/region/s3/aws4_request`.
fn signed_region(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    authorization.split_once("Credential=")?.1.split('/').nth(2)
}

fn wrong_region(expected: &str, found: &str) -> S3Error {
    let message =
        format!("The authorization header is malformed; the region '{found}' is wrong; expecting '{expected}'");
    let mut error = S3Error::with_message(S3ErrorCode::AuthorizationHeaderMalformed, message);
    error.set_status_code(StatusCode::BAD_REQUEST);
    if let Ok(region) = HeaderValue::from_str(expected) {
        error.set_headers([(http::HeaderName::from_static("x-amz-bucket-region"), region)].into_iter().collect());
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_is_read_from_the_signature() {
        let mut headers = HeaderMap::new();
        assert_eq!(signed_region(&headers), None);
        let value = "AWS4-HMAC-SHA256 Credential=AK/20260101/eu-central-1/s3/aws4_request, SignedHeaders=host";
        headers.insert(http::header::AUTHORIZATION, HeaderValue::from_static(value));
        assert_eq!(signed_region(&headers), Some("eu-central-1"));
    }
}

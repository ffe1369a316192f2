//! One request through the proxy.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderValue, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::body::{BodyError, Passing, Way};
use super::operation::{Operation, Request};
use super::rule::Fault;
use super::socket::Reset;
use super::{Record, Shared};

/// The connection ends here, as ordered.
#[derive(Debug, thiserror::Error)]
#[error("the connection is reset, as ordered")]
struct Ordered;

/// What the faults of a request come to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    delay: Duration,
    bytes_per_second: Option<u64>,
    cut_request: Option<u64>,
    cut_reply: Option<u64>,
    /// What the client is told instead of the store's answer.
    instead: Option<Instead>,
}

#[derive(Debug, PartialEq, Eq)]
struct Instead {
    /// Whether the store hears of the request.
    applied: bool,
    told: Told,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Error(u16, String),
}

/// Later faults win over earlier ones of their kind; delays add up.
fn plan(faults: &[Fault]) -> Plan {
    let mut plan = Plan::default();
    let instead = |applied, told| Some(Instead { applied, told });
    for fault in faults {
        match fault {
            Fault::Delay(delay) => plan.delay += *delay,
            Fault::Bandwidth(rate) => plan.bytes_per_second = Some(*rate),
            Fault::CutRequest(bytes) => plan.cut_request = Some(*bytes),
            Fault::CutReply(bytes) => plan.cut_reply = Some(*bytes),
            Fault::Reset => plan.instead = instead(false, Told::Nothing),
            Fault::DropReply => plan.instead = instead(true, Told::Nothing),
            Fault::Status(status, code) => plan.instead = instead(false, Told::Error(*status, code.clone())),
            Fault::StatusAfter(status, code) => plan.instead = instead(true, Told::Error(*status, code.clone())),
            Fault::ErrorInOk { code, applied } => plan.instead = instead(*applied, Told::Error(200, code.clone())),
        }
    }
    plan
}

pub(super) async fn relay(
    shared: Arc<Shared>,
    request: http::Request<Incoming>,
    reset: Reset,
) -> Result<http::Response<Passing>, BodyError> {
    let begun = Instant::now();
    let (head, body) = request.into_parts();
    let asked = Request::of(&head);
    let (place, mut plan, wait) = arrive(&shared, &asked);
    let finish = |status: Option<u16>| {
        let mut state = shared.state();
        if let Some(record) = state.log.get_mut(place) {
            record.status = status;
            record.duration = Some(begun.elapsed());
        }
    };
    if !(plan.delay + wait).is_zero() {
        tokio::time::sleep(plan.delay + wait).await;
    }
    let instead = plan.instead.take();
    if let Some(Instead { applied: false, told }) = instead {
        if told == Told::Nothing {
            finish(None);
            reset.order();
            return Err(Ordered.into());
        }
        // The client sends its whole request before it looks at the answer, so it is taken in.
        let body = Passing::incoming(body, Arc::clone(&shared), place, Way::Up).paced(plan.bytes_per_second);
        let _ = body.collect().await;
        return Ok(told_answer(told, &shared, place, begun));
    }
    let rate = plan.bytes_per_second;
    let body = Passing::incoming(body, Arc::clone(&shared), place, Way::Up).cut_after(plan.cut_request).paced(rate);
    let answer = shared.client.request(forward(&shared.target, head, body)?).await;
    let answer = match answer {
        Ok(answer) => answer,
        // The store is gone, or the request's body was cut: the client loses its connection too.
        Err(error) => {
            finish(None);
            reset.order();
            return Err(error.into());
        }
    };
    let Some(Instead { told, .. }) = instead else {
        let (head, body) = answer.into_parts();
        note_status(&shared, place, head.status);
        let body = Passing::incoming(body, Arc::clone(&shared), place, Way::Down);
        let body = body.cut_after(plan.cut_reply).paced(rate).ends_request(begun);
        return Ok(http::Response::from_parts(head, body));
    };
    // All of the answer has come when the store has done all of the work.
    let _ = answer.into_body().collect().await;
    if told == Told::Nothing {
        finish(None);
        reset.order();
        return Err(Ordered.into());
    }
    Ok(told_answer(told, &shared, place, begun))
}

/// Notes a request, and what is to go wrong with it.
fn arrive(shared: &Shared, asked: &Request) -> (usize, Plan, Duration) {
    let mut state = shared.state();
    let faults: Vec<Fault> = state.rules.iter_mut().filter_map(|rule| rule.pick(asked)).collect();
    let mut plan = plan(&faults);
    let record = Record { request: asked.clone(), status: None, bytes_up: 0, bytes_down: 0, duration: None, faults };
    state.log.push(record);
    let mut wait = Duration::ZERO;
    if asked.operation == Operation::Get {
        wait = state.model.first_byte(&state.rng);
        plan.bytes_per_second = plan.bytes_per_second.or(state.model.bytes_per_second);
    }
    (state.log.len() - 1, plan, wait)
}

fn note_status(shared: &Shared, place: usize, status: StatusCode) {
    if let Some(record) = shared.state().log.get_mut(place) {
        record.status = Some(status.as_u16());
    }
}

/// The same request to the target. `Host` stays what the client signed.
fn forward(target: &str, mut head: http::request::Parts, body: Passing) -> Result<http::Request<Passing>, http::Error> {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    head.uri = Uri::builder().scheme(Scheme::HTTP).authority(target).path_and_query(path).build()?;
    head.version = http::Version::HTTP_11;
    Ok(http::Request::from_parts(head, body))
}

/// An error as S3 tells it.
fn told_answer(told: Told, shared: &Arc<Shared>, place: usize, begun: Instant) -> http::Response<Passing> {
    let (status, code) = match told {
        Told::Error(status, code) => (status, code),
        Told::Nothing => (500, "InternalError".to_owned()),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    note_status(shared, place, status);
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>a fault made on purpose</Message><RequestId>fault-{place}</RequestId></Error>"
    );
    let body = Passing::whole(Bytes::from(text), Arc::clone(shared), place, Way::Down).ends_request(begun);
    let mut answer = http::Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_together() {
        let faults = [
            Fault::Delay(Duration::from_secs(1)),
            Fault::Bandwidth(5),
            Fault::Delay(Duration::from_secs(2)),
            Fault::slow_down(),
            Fault::DropReply,
        ];
        let expected = Plan {
            delay: Duration::from_secs(3),
            bytes_per_second: Some(5),
            instead: Some(Instead { applied: true, told: Told::Nothing }),
            ..Plan::default()
        };
        assert_eq!(plan(&faults), expected);
        assert_eq!(plan(&[]), Plan::default());
    }
}

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::*;
use crate::answers::{AnswerStream, answers};
use crate::testing::{Made, On, Sizes, World, noise};

type Requests = mpsc::Sender<std::result::Result<v1::ReadEntriesRequest, Status>>;

/// A caller of `ReadEntries`.
struct Caller {
    requests: Requests,
    answers: AnswerStream<v1::ReadEntriesResponse>,
}

impl Caller {
    fn new(world: &World) -> Self {
        let session = Session {
            tiers: Arc::clone(&world.tiers),
            tasks: world.tasks.clone(),
            initial_credit_bytes: 4 << 20,
            idle: Duration::from_secs(60),
        };
        let (requests, receiver) = mpsc::channel(16);
        let (sender, answers) = answers();
        world.tasks.spawn("read entries", session.run(ReceiverStream::new(receiver), sender));
        Self { requests, answers }
    }

    async fn start(world: &World, made: &Made, initial_credit_bytes: u64) -> Self {
        let caller = Self::new(world);
        let start = v1::ReadStart { ledger_id: made.ledger.get(), initial_credit_bytes, ..v1::ReadStart::default() };
        caller.say(Message::Start(start)).await;
        caller
    }

    async fn say(&self, message: Message) {
        self.requests.send(Ok(v1::ReadEntriesRequest { message: Some(message) })).await.unwrap();
    }

    async fn grant(&self, bytes: u64) {
        self.say(Message::Credit(v1::ReadCredit { bytes })).await;
    }

    async fn next(&mut self) -> Option<std::result::Result<Vec<v1::Entry>, Status>> {
        Some(self.answers.next().await?.map(|answer| answer.entries))
    }

    /// Payload bytes that come without further credit. Time is paused: it jumps only when nothing else can happen.
    async fn take_all_there_is(&mut self, got: &mut Vec<Bytes>) -> u64 {
        let mut bytes = 0;
        while let Ok(Some(entries)) = tokio::time::timeout(Duration::from_millis(100), self.next()).await {
            for entry in entries.unwrap() {
                bytes += entry.payload.len() as u64;
                got.push(entry.payload);
            }
        }
        bytes
    }
}

/// Payloads of all sizes from 0 to 3000 bytes.
fn mixed(count: usize) -> Vec<Bytes> {
    noise(count, 3_000).into_iter().enumerate().map(|(place, payload)| payload.slice(..place * 37 % 3_001)).collect()
}

#[tokio::test(start_paused = true)]
async fn never_more_than_the_credit_and_one_entry() {
    let world = World::new(Sizes::default());
    for (number, on) in [(1, On::Hot), (2, On::Released)] {
        let made = world.make(number, mixed(400), on).await;
        let mut caller = Caller::start(&world, &made, 1_000).await;
        let (mut granted, mut got, mut sent) = (1_000, Vec::new(), 0);
        let mut grants = [1u64, 0, 5_000, 1, 1, 20_000, 3].into_iter().cycle();
        while got.len() < made.payloads.len() {
            sent += caller.take_all_there_is(&mut got).await;
            let before_last = sent - got.last().map_or(0, |last| last.len() as u64);
            assert!(before_last < granted, "{on:?}: {sent} sent, {granted} granted");
            if got.len() < made.payloads.len() {
                assert!(sent >= granted, "{on:?}: {sent} sent of {granted}: what was granted is sent");
                let more = grants.next().unwrap();
                granted += more;
                caller.grant(more).await;
            }
        }
        assert_eq!(got, made.payloads);
        assert!(caller.next().await.is_none(), "the stream ends with the range");
    }
}

#[tokio::test]
async fn a_reader_that_grants_what_it_gets_reads_everything() {
    let world = World::new(Sizes::default());
    let made = world.make(1, mixed(3_000), On::Released).await;
    let mut caller = Caller::start(&world, &made, 64 << 10).await;
    let mut got = Vec::new();
    while let Some(entries) = caller.next().await {
        let entries = entries.unwrap();
        let bytes: usize = entries.iter().map(|entry| entry.payload.len()).sum();
        got.extend(entries.into_iter().map(|entry| entry.payload));
        // After its last message the session no longer listens.
        let credit = v1::ReadCredit { bytes: bytes as u64 };
        let _ = caller.requests.send(Ok(v1::ReadEntriesRequest { message: Some(Message::Credit(credit)) })).await;
    }
    assert_eq!(got, made.payloads);
}

#[tokio::test(start_paused = true)]
async fn a_reader_without_credit_costs_no_memory() {
    let world = World::new(Sizes::default());
    let made = world.make(1, mixed(400), On::Released).await;
    let mut caller = Caller::start(&world, &made, 1).await;
    caller.take_all_there_is(&mut Vec::new()).await;
    tokio::time::sleep(KEEP * 2).await;
    assert_eq!(world.tiers.send_budget.used_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_keeps_no_stream_of_hot_entries() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(50, 100_000), On::Hot).await;
    let mut caller = Caller::start(&world, &made, u64::MAX).await;
    let mut got: Vec<_> = caller.next().await.unwrap().unwrap().into_iter().map(|entry| entry.payload).collect();
    tokio::time::sleep(KEEP * 2).await;
    assert_eq!(world.hot.open_streams(), 0, "its read-ahead is others' memory");
    while let Some(entries) = caller.next().await {
        got.extend(entries.unwrap().into_iter().map(|entry| entry.payload));
    }
    assert_eq!(got, made.payloads);
}

#[tokio::test(start_paused = true)]
async fn streams_that_break_the_rules_are_ended_with_a_reason() {
    let world = World::new(Sizes::default());
    let made = world.make(1, mixed(400), On::Hot).await;
    let code = |answer: Option<std::result::Result<Vec<v1::Entry>, Status>>| answer.unwrap().unwrap_err().code();

    let mut credit_first = Caller::new(&world);
    credit_first.grant(5).await;
    assert_eq!(code(credit_first.next().await), Code::InvalidArgument);

    let mut empty = Caller::new(&world);
    empty.requests.send(Ok(v1::ReadEntriesRequest { message: None })).await.unwrap();
    assert_eq!(code(empty.next().await), Code::InvalidArgument);

    let mut two_starts = Caller::start(&world, &made, 1).await;
    two_starts.say(Message::Start(v1::ReadStart::default())).await;
    while let Some(Ok(_)) = two_starts.answers.next().await {}

    let mut silent = Caller::new(&world);
    assert_eq!(code(silent.next().await), Code::DeadlineExceeded);

    let mut miser = Caller::start(&world, &made, 1).await;
    miser.take_all_there_is(&mut Vec::new()).await;
    assert_eq!(code(miser.next().await), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_caller_that_ends_its_side_gets_what_it_has_granted() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(100, 100), On::Hot).await;
    let Caller { requests, mut answers } = Caller::start(&world, &made, 0).await;
    drop(requests);
    let mut entries = 0;
    while let Some(answer) = answers.next().await {
        entries += answer.unwrap().entries.len();
    }
    assert_eq!(entries, 100);

    let Caller { requests, mut answers } = Caller::start(&world, &made, 500).await;
    drop(requests);
    let error = loop {
        if let Err(error) = answers.next().await.unwrap() {
            break error;
        }
    };
    assert_eq!(error.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn a_stop_ends_sessions_with_an_error() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(100, 100), On::Hot).await;
    let mut caller = Caller::start(&world, &made, 500).await;
    caller.next().await.unwrap().unwrap();
    world.tasks.stop(Duration::from_secs(5)).await.unwrap();
    let error = loop {
        if let Err(error) = caller.next().await.unwrap() {
            break error;
        }
    };
    assert_eq!(error.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_its_session() {
    let world = World::new(Sizes::default());
    let made = world.make(1, noise(100, 100), On::Released).await;
    let caller = Caller::start(&world, &made, 500).await;
    drop(caller.answers);
    // The request stream is still open; the session must end all the same.
    while world.tasks.running().iter().any(|task| task.contains("read entries")) {
        tokio::task::yield_now().await;
    }
    drop(caller.requests);
}

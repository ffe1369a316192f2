//! A second opinion on S3: the cold store's suite and an offload against LocalStack, code that is not ours.

use std::cell::Cell;

use ::faults::{LocalStack, skipped};
use cold::suite;

use crate::offload_world::{World, open, store_options};

const PART_BYTES: u64 = 5 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn localstack_serves_the_suite_and_an_offload() {
    if !LocalStack::is_installed() {
        return skipped(
            "localstack",
            "the Python environment of scripts/setup --tests is not there (it needs Python 3.11)",
        );
    }
    let stack = LocalStack::start().await.unwrap();
    let count = Cell::new(0);
    let options = || store_options(&stack.endpoint(), ("test", "test"), PART_BYTES, 2);
    suite::run(async || {
        count.set(count.get() + 1);
        open(&format!("s3://{}/suite/{}", LocalStack::BUCKET, count.get()), options())
    })
    .await;

    let cold = open(&format!("s3://{}/offload", LocalStack::BUCKET), options());
    // More than two parts of bytes that do not compress.
    let world = World::new(&cold, 300, 40_000).await;
    let outcome = world.offload("LocalStack", &cold).await;
    assert_eq!((outcome.tries, outcome.condemned.len()), (1, 0));
    let listed = cold.list(outcome.key.split('/').next().unwrap(), None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|facts| facts.key.as_str()).collect::<Vec<_>>(), [outcome.key.as_str()]);
    assert!(listed[0].bytes > 2 * PART_BYTES, "{listed:?}");
    world.stop().await;
}

//! Waiting for a process to stand still.

use std::process::Child;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Waits until all threads of a child have stopped that was sent the signal to. Sending it is asking: on a busy machine its threads
/// go on for a while, and answer.
///
/// # Panics
/// When it is no child any more: a mistake of the test.
pub(crate) fn wait(child: &Child) {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let state = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(Pid::from_child(child)), options));
    state.expect("a child that was not waited for can be looked at");
}

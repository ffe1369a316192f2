//! Requests that take a turn of their connection, each served by a task of its own.

use ledger::LedgerId;
use proto::{ReadTarget, Reply, ReplyTo, Status};
use tokio::time::Instant;

use super::batch::BatchJob;
use super::polls::PollJob;
use super::reads::Reads;
use crate::wakeups::Wakeups;

/// See the module.
pub(super) enum Task {
    Run(BatchJob, LedgerId),
    List { to: ReplyTo, ledger: LedgerId, received: Instant },
    Info { to: ReplyTo, total: bool, free: bool, received: Instant },
    Poll(PollJob),
}

impl Task {
    fn to(&self) -> &ReplyTo {
        match self {
            Self::Run(BatchJob { to, .. }, _) | Self::List { to, .. } | Self::Info { to, .. } => to,
            Self::Poll(job) => &job.to,
        }
    }

    fn received(&self) -> Instant {
        match self {
            Self::Run(BatchJob { received, .. }, _) | Self::List { received, .. } | Self::Info { received, .. } => {
                *received
            }
            Self::Poll(job) => job.received,
        }
    }
}

impl Reads {
    /// Serves an open request to its end.
    pub(super) async fn serve(&self, task: Task) {
        let to = *task.to();
        if let Err(status) = self.try_serve(task).await {
            self.put(&to, &Reply::Failed(status), None, &mut Wakeups::default());
        }
    }

    /// # Errors
    /// What is to be answered when the request came to nothing before it was served.
    async fn try_serve(&self, task: Task) -> Result<(), Status> {
        let until = self.server.until(task.received());
        let turn = async || self.batch_turn().await.ok_or(Status::Io);
        let load = async |ledger| self.server.by(until, self.server.load(ledger)).await;
        let load_for = async |ledger, target| self.server.by(until, self.server.load_for(ledger, target)).await;
        match task {
            Task::Poll(job) => {
                let slot = load(job.ledger).await?;
                self.serve_poll(job, slot).await;
            }
            Task::Run(job, ledger) => {
                let slot = load_for(ledger, ReadTarget::Entry(job.start)).await?;
                let _turn = self.server.by(until, turn()).await?;
                self.serve_run(job, slot).await;
            }
            Task::List { to, ledger, received } => {
                let slot = load(ledger).await?;
                let _turn = self.server.by(until, turn()).await?;
                self.serve_list(to, &slot, received).await;
            }
            Task::Info { to, total, free, .. } => {
                let _turn = self.server.by(until, turn()).await?;
                self.serve_info(to, total, free, until).await;
            }
        }
        Ok(())
    }
}

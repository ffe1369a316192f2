use async_trait::async_trait;
use ledger::LedgerId;

/// A step of a job. A crash between any two leaves a state from which the next job goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Reads the ledger's record and its attempt, by proof.
    ReadLedger,
    /// Makes the attempt, and abandons an earlier one.
    ClaimAttempt,
    /// Reads all entries and writes the object.
    Upload,
    /// Reads the object back and compares.
    ReadBack,
    /// Makes the ledger's record name the object.
    Commit,
    /// Marks an attempt that cannot be committed.
    Abandon,
    /// Proves that the gateway serves the ledger from its object.
    ProveRelease,
    /// Puts cold ids in the place of the members.
    Release,
}

impl Step {
    /// All steps, in the order in which a job takes them.
    pub const ALL: [Self; 8] = [
        Self::ReadLedger,
        Self::ClaimAttempt,
        Self::Upload,
        Self::ReadBack,
        Self::Commit,
        Self::Abandon,
        Self::ProveRelease,
        Self::Release,
    ];

    /// The step's name in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadLedger => "read_ledger",
            Self::ClaimAttempt => "claim_attempt",
            Self::Upload => "upload",
            Self::ReadBack => "read_back",
            Self::Commit => "commit",
            Self::Abandon => "abandon",
            Self::ProveRelease => "prove_release",
            Self::Release => "release",
        }
    }
}

/// What a job does after its observer was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Go,
    /// End here, doing nothing more, as if the process had died.
    Halt,
}

/// Sees every step of every job. Made for tests that stop a job between any two steps, or change the world there.
#[async_trait]
pub trait StepObserver: Send + Sync + 'static {
    /// Before a step.
    async fn before(&self, _ledger: LedgerId, _step: Step) -> Verdict {
        Verdict::Go
    }

    /// After a step that succeeded.
    async fn after(&self, _ledger: LedgerId, _step: Step) -> Verdict {
        Verdict::Go
    }
}

/// Sees nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl StepObserver for NoObserver {}

use async_trait::async_trait;
use ledger::LedgerId;

/// Makes the steps, the list of them all and their names out of one table, so that none can be missing in a list.
macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $name:literal,)*) => {
        /// A step of a job. A crash between any two leaves a state from which the next job goes on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Step {
            $($(#[$doc])* $step,)*
        }

        impl Step {
            /// All steps, in the order in which a job takes them.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$step),*];

            /// The step's name in traces.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$step => $name,)*
                }
            }
        }
    };
}

steps! {
    /// Reads the ledger's record and its attempt, by proof.
    ReadLedger = "read_ledger",
    /// Makes the attempt, and abandons an earlier one.
    ClaimAttempt = "claim_attempt",
    /// Reads all entries and writes the object.
    Upload = "upload",
    /// Reads the object back and compares.
    ReadBack = "read_back",
    /// Makes the ledger's record name the object.
    Commit = "commit",
    /// Marks an attempt that cannot be committed.
    Abandon = "abandon",
    /// Proves that the gateway serves the ledger from its object.
    ProveRelease = "prove_release",
    /// Puts cold ids in the place of the members.
    Release = "release",
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

use std::sync::Arc;

/// Someone to wake when answers were put down for it.
pub(crate) trait Wake: Send + Sync {
    /// Looks at the answers.
    fn wake(&self);
    /// Whether this is the first answer since the last wake-up, so that it is woken once for many.
    fn arm(&self) -> bool;
}

/// Those to wake once a whole group of answers is put down: one write to a socket then carries many.
#[derive(Default)]
pub(crate) struct Wakeups(Vec<Arc<dyn Wake>>);

impl Wakeups {
    /// Notes that `who` has an answer.
    pub(crate) fn add<W: Wake + 'static>(&mut self, who: &Arc<W>) {
        if who.arm() {
            self.0.push(who.clone());
        }
    }

    /// Wakes all noted.
    pub(crate) fn flush(&mut self) {
        for who in self.0.drain(..) {
            who.wake();
        }
    }
}

impl Drop for Wakeups {
    fn drop(&mut self) {
        self.flush();
    }
}

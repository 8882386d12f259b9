//! The turns of transactions that add pages to a cohort: each is committed after the one before it.

use tokio::sync::watch;

use crate::records::Cursor;

/// How far the pages of a freeze are in the cohort. Clones share it.
#[derive(Debug, Clone)]
pub struct PageTurns(watch::Sender<Option<Cursor>>);

/// The turn of one transaction: it comes when all pages before it are in the cohort.
#[derive(Debug, Clone)]
pub struct PageTurn {
    written: watch::Receiver<Option<Cursor>>,
    begins: Cursor,
}

impl PageTurns {
    /// Begins at the first page that is not in the cohort.
    pub fn new(begins: Cursor) -> Self {
        Self(watch::Sender::new(Some(begins)))
    }

    /// Returns the turn of the transaction whose first page begins there.
    pub fn at(&self, begins: Cursor) -> PageTurn {
        PageTurn { written: self.0.subscribe(), begins }
    }

    /// Notes that all pages before this point are in the cohort. After [`Self::end`] it does nothing: a transaction
    /// that was under way then may still be committed, and nothing follows it.
    pub fn written(&self, before: Cursor) {
        self.0.send_if_modified(|reached| {
            let has_turns = reached.is_some();
            *reached = has_turns.then_some(before);
            has_turns
        });
    }

    /// Lets no later turn come, for good.
    pub fn end(&self) {
        self.0.send_replace(None);
    }

    /// Returns the point before which all pages are in the cohort; `None` after [`Self::end`].
    pub fn reached(&self) -> Option<Cursor> {
        *self.0.borrow()
    }
}

impl PageTurn {
    /// Waits until all pages before it are in the cohort; returns `false` if they never will be.
    pub async fn comes(&self) -> bool {
        let mut written = self.written.clone();
        let reached = written.wait_for(|written| written.is_none_or(|cursor| cursor == self.begins)).await;
        reached.is_ok_and(|written| written.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(user: u64) -> Cursor {
        Cursor { table: 0, after: Some(user) }
    }

    #[tokio::test]
    async fn a_turn_comes_when_all_pages_before_it_are_written() {
        let turns = PageTurns::new(Cursor::default());
        assert!(turns.at(Cursor::default()).comes().await);
        let second = turns.at(at(1));
        let (comes, ()) = tokio::join!(second.comes(), async { turns.written(at(1)) });
        assert!(comes);
        assert_eq!(turns.reached(), Some(at(1)));
    }

    #[tokio::test]
    async fn no_turn_comes_after_the_end_whatever_was_still_committed() {
        let turns = PageTurns::new(Cursor::default());
        let second = turns.at(at(1));
        turns.end();
        turns.written(at(1));
        assert!(!second.comes().await && !turns.at(at(2)).comes().await);
        assert_eq!(turns.reached(), None);
    }
}

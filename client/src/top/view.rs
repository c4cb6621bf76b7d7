//! What was heard, and how it is looked at.

use std::collections::VecDeque;
use std::time::Duration;

use tinygpt_proto::v1::WatchResponse;

/// No more often than the daemon tells.
pub(super) const SHORTEST: Duration = Duration::from_millis(100);
/// No less often than this.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// Rates that are kept: as many as a wide terminal shows.
const HISTORY: usize = 300;

/// What there is to see.
#[derive(Debug)]
pub(super) struct View {
    /// How often it changes.
    pub(super) every: Duration,
    /// Whether it stands still.
    pub(super) paused: bool,
    /// What goes on; of before, when the daemon is gone.
    pub(super) told: Option<WatchResponse>,
    /// Why nothing is heard, when it is not.
    pub(super) gone: Option<String>,
    /// Tokens a second, of prompts and generated, the oldest first.
    pub(super) rates: VecDeque<[f64; 2]>,
}

impl View {
    pub(super) fn new(every: Duration) -> Self {
        let gone = Some("no daemon was heard yet".to_owned());
        Self { every, paused: false, told: None, gone, rates: VecDeque::new() }
    }

    /// Something was heard; what was before is forgotten unless the view stands still.
    pub(super) fn hear(&mut self, told: WatchResponse) {
        self.gone = None;
        if self.paused && self.told.is_some() {
            return;
        }
        // What a first response tells of is no moment.
        if told.span.is_none_or(|span| span.seconds <= LONGEST.as_secs().cast_signed()) {
            if self.rates.len() == HISTORY {
                self.rates.pop_front();
            }
            let sum = |rate: fn(&_) -> f64| told.models.iter().map(rate).sum();
            self.rates.push_back([
                sum(|m: &tinygpt_proto::v1::ModelActivity| m.prompt_rate),
                sum(|m| m.generated_rate),
            ]);
        }
        self.told = Some(told);
    }

    /// The daemon is gone.
    #[cfg(any(feature = "top", test))]
    pub(super) fn lose(&mut self, why: String) {
        self.gone = Some(why);
    }

    /// Looks twice as often, or half as often.
    #[cfg(any(feature = "top", test))]
    pub(super) fn hurry(&mut self, faster: bool) {
        let every = if faster { self.every / 2 } else { self.every * 2 };
        self.every = every.clamp(SHORTEST, LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_view_stands_still_and_still_notices_that_the_daemon_is_gone() {
        let mut view = View::new(SHORTEST);
        let told = |running| WatchResponse { running, ..WatchResponse::default() };
        view.hear(told(1));
        view.paused = true;
        view.hear(told(2));
        assert_eq!(view.told.as_ref().map(|told| told.running), Some(1));
        view.lose("gone".into());
        assert!(view.gone.is_some());
    }

    #[test]
    fn an_interval_stays_within_what_makes_sense() {
        let mut view = View::new(Duration::from_secs(1));
        (0..20).for_each(|_| view.hurry(true));
        assert_eq!(view.every, SHORTEST);
        (0..20).for_each(|_| view.hurry(false));
        assert_eq!(view.every, LONGEST);
    }
}

//! Whose turn it is: in the queue before admission, and for the rows of a step after it.
//!
//! Priority goes first. Whoever has not been served for long rises a level at a time, so no level
//! starves another. On one level clients take turns, so one with fifty requests holds up another
//! with one for a single turn. Among the turns of one round less work goes before more, then the
//! longer wait decides.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::job::{Caller, ClientId, Priority};

/// How long it takes without service to rise a level.
const AGEING: Duration = Duration::from_secs(10);

/// A priority that has grown with the time without service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(Priority);

impl Level {
    /// The level of what was not served for `unserved`.
    pub(super) fn of(priority: Priority, unserved: Duration) -> Self {
        let risen = match unserved.as_nanos() / AGEING.as_nanos() {
            0 => priority,
            1 => priority.next(),
            _ => Priority::High,
        };
        Self(risen)
    }
}

/// Something that wants its turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contender {
    pub(super) level: Level,
    pub(super) client: ClientId,
    /// Rows that it wants.
    pub(super) work: usize,
    /// Since when it has been waiting for its turn.
    pub(super) since: Instant,
    /// When its level rises next.
    pub(super) rises: Option<Instant>,
}

impl Contender {
    /// As it stands at `now`.
    pub(super) fn of(caller: Caller, since: Instant, now: Instant) -> Self {
        let Caller { client, priority } = caller;
        let unserved = now.saturating_duration_since(since);
        let level = Level::of(priority, unserved);
        let higher = |after: &Duration| Level::of(priority, *after) > level;
        let rises = [AGEING, AGEING * 2].into_iter().find(higher).map(|after| since + after);
        Self { level, client, work: 0, since, rises }
    }
}

/// The places in `contenders` in the order of their turns; `taken` tells how many turns a client
/// has had already.
pub(super) fn turns(contenders: &[Contender], taken: impl Fn(ClientId) -> usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..contenders.len()).collect();
    order.sort_by_key(|at| contenders[*at].within_client());
    let mut rounds = vec![0; contenders.len()];
    let mut next = HashMap::new();
    for at in &order {
        let client = contenders[*at].client;
        let round = next.entry(client).or_insert_with(|| taken(client));
        rounds[*at] = *round;
        *round += 1;
    }
    order.sort_by_key(|at| {
        let (level, rest) = contenders[*at].within_client();
        (level, rounds[*at], rest)
    });
    order
}

impl Contender {
    /// What decides between two of the same client, the level first.
    fn within_client(&self) -> (Reverse<Level>, (usize, Instant)) {
        (Reverse(self.level), (self.work, self.since))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: ClientId = ClientId { uid: 0, pid: 1 };
    const B: ClientId = ClientId { uid: 0, pid: 2 };

    struct Bench(Instant);

    impl Bench {
        /// One that arrived as the `nth`.
        fn contender(&self, client: ClientId, priority: Priority, nth: u64) -> Contender {
            let since = self.0 + Duration::from_millis(nth);
            Contender::of(Caller { client, priority }, since, since)
        }

        fn normal(&self, client: ClientId, nth: u64) -> Contender {
            self.contender(client, Priority::Normal, nth)
        }
    }

    fn bench() -> Bench {
        Bench(Instant::now())
    }

    fn none(_: ClientId) -> usize {
        0
    }

    #[test]
    fn one_client_is_served_in_the_order_of_arrival() {
        let bench = bench();
        let all = [bench.normal(A, 2), bench.normal(A, 1), bench.normal(A, 3)];
        assert_eq!(turns(&all, none), [1, 0, 2]);
    }

    #[test]
    fn a_higher_priority_goes_first() {
        let bench = bench();
        let priorities = [Priority::Low, Priority::High, Priority::Normal, Priority::High];
        let all: Vec<_> =
            (0..).zip(priorities).map(|(nth, p)| bench.contender(A, p, nth)).collect();
        assert_eq!(turns(&all, none), [1, 3, 2, 0]);
    }

    #[test]
    fn clients_take_turns_however_many_requests_one_of_them_has() {
        let bench = bench();
        let mut all: Vec<_> = (0..5).map(|nth| bench.normal(A, nth)).collect();
        all.push(bench.normal(B, 9));
        assert_eq!(turns(&all, none), [0, 5, 1, 2, 3, 4]);
        let running = |client| if client == A { 1 } else { 0 };
        assert_eq!(turns(&all, running), [5, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn little_work_goes_before_much_in_the_same_round() {
        let bench = bench();
        let long = Contender { work: 8000, ..bench.normal(A, 0) };
        let short = Contender { work: 20, ..bench.normal(B, 1) };
        assert_eq!(turns(&[long, short], none), [1, 0]);
    }

    #[test]
    fn whoever_is_not_served_rises_to_the_top() {
        let level = |priority, seconds| Level::of(priority, Duration::from_secs(seconds)).0;
        assert_eq!(level(Priority::Low, 9), Priority::Low);
        assert_eq!(level(Priority::Low, 10), Priority::Normal);
        assert_eq!(level(Priority::Low, 20), Priority::High);
        assert_eq!(level(Priority::Normal, 10), Priority::High);
        assert_eq!(level(Priority::High, 1_000_000), Priority::High);
    }

    /// A client, a priority and the milliseconds that it has been waiting.
    fn waiting() -> impl Strategy<Value = (u32, Priority, u64)> {
        let priorities = [Priority::Low, Priority::Normal, Priority::High];
        (1..4_u32, prop::sample::select(priorities.to_vec()), 0..25_000_u64)
    }

    proptest! {
        #[test]
        fn the_order_stays_as_it_is_until_somebody_rises(
            line in prop::collection::vec(waiting(), 1..8),
            part in 0.0..1.0,
        ) {
            let begin = Instant::now() + Duration::from_secs(60);
            let at = |now: Instant| -> Vec<_> {
                let of = |(pid, priority, waited): &(u32, Priority, u64)| {
                    let caller = Caller { client: ClientId { uid: 0, pid: *pid }, priority: *priority };
                    Contender::of(caller, begin - Duration::from_millis(*waited), now)
                };
                line.iter().map(of).collect()
            };
            let line_now = at(begin);
            let Some(rise) = line_now.iter().filter_map(|one| one.rises).min() else {
                let later = at(begin + AGEING * 100);
                prop_assert_eq!(turns(&later, none), turns(&line_now, none));
                return Ok(());
            };
            let before = at(begin + (rise - begin - Duration::from_nanos(1)).mul_f64(part));
            prop_assert_eq!(turns(&before, none), turns(&line_now, none));
            let risen = at(rise);
            let higher = |(after, before): (&Contender, &Contender)| after.level > before.level;
            prop_assert!(risen.iter().zip(&line_now).any(higher));
        }
    }
}

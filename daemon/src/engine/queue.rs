//! The jobs that wait for admission.

use std::collections::HashMap;
use std::time::Instant;

use super::job::{ClientId, Job, Priority};
use super::turns::Contender;

/// The jobs of one engine that are not admitted yet, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    jobs: Vec<Job>,
    /// When a client's request of a priority was admitted last. Its others have been waiting for
    /// their turn only since then.
    served: HashMap<(ClientId, Priority), Instant>,
    changes: u64,
}

impl Queue {
    /// Takes a job in.
    pub(super) fn push(&mut self, job: Job) {
        self.changes += 1;
        self.jobs.push(job);
    }

    /// How often jobs have come or gone.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Jobs of `client`.
    pub(super) fn count(&self, client: ClientId) -> usize {
        self.jobs.iter().filter(|job| job.caller.client == client).count()
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The jobs as they stand in line at `now`: behind whoever came before their client was served
    /// last.
    pub(super) fn contenders(&self, now: Instant) -> impl Iterator<Item = Contender> {
        self.jobs.iter().map(move |job| {
            let caller = job.caller;
            let served = self.served.get(&(caller.client, caller.priority)).copied();
            let since = served.map_or(job.received, |served| served.max(job.received));
            Contender::of(caller, since, now)
        })
    }

    /// Takes the job at `at` out: it is admitted, or refused.
    pub(super) fn take(&mut self, at: usize, now: Instant) -> Job {
        self.changes += 1;
        let job = self.jobs.remove(at);
        self.served.insert((job.caller.client, job.caller.priority), now);
        let jobs = &self.jobs;
        self.served.retain(|(client, priority), _| {
            jobs.iter().any(|job| (job.caller.client, job.caller.priority) == (*client, *priority))
        });
        job
    }

    /// Takes out the jobs that nobody waits for any more.
    pub(super) fn take_if(&mut self, over: impl Fn(&Job) -> bool) -> Vec<Job> {
        let taken: Vec<_> = self.jobs.extract_if(.., |job| over(job)).collect();
        self.changes += taken.len() as u64;
        taken
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::job::{Caller, EVENTS, Namespace, Persist, Policy, Task};
    use super::super::turns::turns;
    use super::*;
    use crate::kv::codec::Codec;
    use crate::kv::key::Digest;

    /// A request of process `pid`.
    fn job(pid: u32, priority: Priority, received: Instant) -> Job {
        let none = Digest::of("test", b"");
        let client = ClientId { uid: 0, pid };
        Job {
            task: Task::Score { top: 0 },
            tokens: Arc::from([1]),
            text: None,
            caller: Caller { client, priority },
            namespace: Namespace { identity: none, sub: none },
            codec: Codec::F16,
            adapter: none,
            policy: Policy::Use,
            persist: Persist::No,
            pin: None,
            deadline: None,
            received,
            generation: 1,
            events: tokio::sync::mpsc::channel(EVENTS).0,
        }
    }

    /// Serves one request at a time, a second each, to clients that always have another one; the
    /// numbers of those served.
    fn serve(crowd: &[Priority], lonely: Priority, seconds: u64) -> Vec<u32> {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut queue = Queue::default();
        let busy = |pid: usize, now| job(u32::try_from(pid).unwrap() + 1, crowd[pid], now);
        (0..crowd.len()).for_each(|pid| queue.push(busy(pid, start)));
        queue.push(job(0, lonely, start));
        let mut served = Vec::new();
        for nth in 0..u32::try_from(seconds).unwrap() {
            let now = start + second * nth;
            let line: Vec<_> = queue.contenders(now).collect();
            let taken = queue.take(turns(&line, |_| 0)[0], now);
            served.push(taken.caller.client.pid);
            if let Some(pid) = (taken.caller.client.pid as usize).checked_sub(1) {
                queue.push(busy(pid, now));
            }
        }
        served
    }

    fn priority() -> impl Strategy<Value = Priority> {
        prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)]
    }

    proptest! {
        #[test]
        fn nobody_starves_whoever_else_asks_for_more_all_the_time(
            crowd in prop::collection::vec(priority(), 1..8),
            lonely in priority(),
        ) {
            // Two levels of ten seconds, then a turn for each of the others.
            let bound = 21 + crowd.len();
            let served = serve(&crowd, lonely, bound as u64);
            prop_assert!(served.contains(&0), "{served:?}");
        }

        #[test]
        fn clients_of_one_priority_are_served_alike(clients in 1..8_usize) {
            let crowd = vec![Priority::Normal; clients];
            let served = serve(&crowd, Priority::Normal, 10 * clients as u64 + 1);
            for pid in 1..=clients {
                let count = served.iter().filter(|served| **served as usize == pid).count();
                prop_assert_eq!(count, 10, "{:?}", served);
            }
        }
    }

    #[test]
    fn a_client_whose_other_requests_are_served_does_not_grow_old() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut queue = Queue::default();
        (0..3).for_each(|_| queue.push(job(1, Priority::Normal, start)));
        queue.take(0, after(25));
        queue.push(job(2, Priority::Normal, after(24)));
        let line: Vec<_> = queue.contenders(after(26)).collect();
        assert_eq!(turns(&line, |_| 0)[0], 2, "the other client came before this one was served");
    }
}

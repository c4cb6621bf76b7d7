//! The jobs that wait for admission.

use std::collections::HashMap;
use std::time::Instant;

use super::job::{ClientId, Job, Priority};
use super::turns::{Contender, Level};

/// The jobs of one engine that are not admitted yet, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    jobs: Vec<Job>,
    /// When a client's request of a priority was admitted last. Its others have been waiting for
    /// their turn only since then.
    served: HashMap<(ClientId, Priority), Instant>,
}

impl Queue {
    /// Takes a job in.
    pub(super) fn push(&mut self, job: Job) {
        self.jobs.push(job);
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
            Contender {
                level: Level::of(caller.priority, now.saturating_duration_since(since)),
                client: caller.client,
                work: 0,
                since,
            }
        })
    }

    /// Takes the job at `at` out: it is admitted, or refused.
    pub(super) fn take(&mut self, at: usize) -> Job {
        let job = self.jobs.remove(at);
        self.served.insert((job.caller.client, job.caller.priority), Instant::now());
        let jobs = &self.jobs;
        self.served.retain(|(client, priority), _| {
            jobs.iter().any(|job| (job.caller.client, job.caller.priority) == (*client, *priority))
        });
        job
    }

    /// Takes out the jobs that nobody waits for any more.
    pub(super) fn take_if(&mut self, over: impl Fn(&Job) -> bool) -> Vec<Job> {
        self.jobs.extract_if(.., |job| over(job)).collect()
    }
}

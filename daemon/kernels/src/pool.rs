//! The compute pool: a few threads that run one region of tasks at a time, together.
//!
//! A region is a function of a task number. The caller and the workers take numbers from one
//! counter until none is left; `run` returns when every task is done. Workers spin for a short,
//! bounded time for the next region, because a forward pass is hundreds of regions a few
//! microseconds apart, and then park: an idle pool uses no processor.
//!
//! Invariants:
//! * one region at a time: callers queue on a mutex, which is how engines lease the pool in turn;
//! * a region's function is only touched by threads that *joined* it. Joining is possible while
//!   the region is open; the caller closes it when no task is left and then waits for the joined
//!   threads only, so a worker still waking up never delays a short region;
//! * no result may depend on which thread runs a task, or on how many threads there are.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::disjoint::Disjoint;

/// Spins before a thread parks: some tens of microseconds.
const SPINS: u32 = 4_000;

/// A fixed set of threads that run regions of tasks together. Dropping it joins its workers.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the caller whose region runs.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

/// A region's function, its lifetime erased: it lives until every thread that joined has left.
type Task = &'static (dyn Fn(usize) + Sync);

struct Shared {
    /// `region number << 32 | OPEN | joined workers`.
    state: AtomicU64,
    /// The next task to take, and how many there are.
    next: AtomicUsize,
    tasks: AtomicUsize,
    /// Where the caller has the function: set before a region opens, read by workers that joined
    /// it.
    task: AtomicPtr<Task>,
    /// The first panic of the region, and whether there is one.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    panicked: AtomicBool,
    /// Parked threads: workers waiting for a region, the caller waiting for workers.
    parked: AtomicUsize,
    door: Mutex<()>,
    bell: Condvar,
}

/// Workers may join the current region.
const OPEN: u64 = 1 << 31;
/// The pool is being dropped; in the state for ever after.
const STOP: u64 = 1 << 30;
/// The number of joined workers.
const JOINED: u64 = STOP - 1;
/// One region further.
const REGION: u64 = 1 << 32;

impl Pool {
    /// A pool of `threads` threads, the caller of [`run`](Pool::run) being one of them.
    ///
    /// # Panics
    /// When the system refuses a thread.
    pub fn new(threads: NonZeroUsize) -> Pool {
        let shared = Arc::new(Shared::new());
        let workers = (1..threads.get())
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("compute-{i}"))
                    .spawn(move || shared.work())
                    .expect("the system starts the pool's threads")
            })
            .collect();
        Pool { shared, turn: Mutex::new(()), workers }
    }

    /// How many threads run a region, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(i)` once for each `i` in `0..tasks`, on all threads, and returns when all are done.
    ///
    /// Regions of several callers run one after the other. A task must not call `run` on the same
    /// pool: it would wait for itself.
    ///
    /// # Panics
    /// With the payload of the first task that panicked; tasks not yet begun are then skipped.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let _turn = lock(&self.turn);
        if self.workers.is_empty() || tasks <= 1 {
            return (0..tasks).for_each(f);
        }
        self.shared.open(tasks, &f);
        self.shared.drain(f);
        self.shared.close();
        if self.shared.panicked.swap(false, Ordering::Relaxed) {
            let panic = lock(&self.shared.panic).take();
            resume_unwind(panic.expect("it is kept before it is told"));
        }
    }

    /// Cuts `rows` (`[T][width]`) into runs of whole rows and calls `f(first row, run)` for each.
    ///
    /// # Panics
    /// When `rows` is not a multiple of `width`, or a task panics.
    pub fn rows(&self, rows: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
        assert_eq!(rows.len() % width, 0, "a buffer of whole rows");
        let t = rows.len() / width;
        let run = t.div_ceil(4 * self.threads()).max(1);
        let parts = Disjoint::new(rows);
        self.run(t.div_ceil(run), &|i| {
            // SAFETY: task `i` alone takes the run of rows that begins at row `i * run`.
            #[expect(unsafe_code, reason = "runs of rows do not overlap")]
            let part = unsafe { parts.part(i * run * width..(i + 1) * run * width) };
            f(i * run, part);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.fetch_or(STOP, Ordering::SeqCst);
        self.shared.ring();
        for worker in self.workers.drain(..) {
            // A worker never unwinds: it catches the panics of its tasks.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Shared {
    fn new() -> Shared {
        Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            task: AtomicPtr::default(),
            panic: Mutex::new(None),
            panicked: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            door: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    /// Opens a region: from here on workers join and take tasks.
    fn open(&self, tasks: usize, f: &&(dyn Fn(usize) + Sync)) {
        let task = std::ptr::from_ref(f).cast::<Task>();
        self.task.store(task.cast_mut(), Ordering::Relaxed);
        self.tasks.store(tasks, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        let last = self.state.load(Ordering::Relaxed);
        let region = (last & !(REGION - 1)).wrapping_add(REGION);
        self.state.store(region | OPEN, Ordering::SeqCst);
        self.ring();
    }

    /// Closes the region and waits for the workers that joined it.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::SeqCst);
        self.wait(|state| state & JOINED == 0);
    }

    /// A worker's life: join, drain, leave, until the pool is dropped.
    fn work(&self) {
        let mut seen = 0;
        loop {
            let state = self.wait(|s| s & STOP != 0 || (s & OPEN != 0 && s / REGION != seen));
            if state & STOP != 0 {
                return;
            }
            let joined = self.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if joined.is_err() {
                continue;
            }
            seen = state / REGION;
            self.drain_joined();
            let left = self.state.fetch_sub(1, Ordering::SeqCst);
            if left & (OPEN | JOINED) == 1 {
                self.ring();
            }
        }
    }

    /// Takes tasks of the region that this thread has joined.
    fn drain_joined(&self) {
        // SAFETY: `run` has not returned, because it waits for those who joined, so that the
        // function is alive and where the pointer says. The state, which was read when joining,
        // is written after the pointer.
        #[expect(unsafe_code, reason = "the region is joined")]
        let f = unsafe { *self.task.load(Ordering::Relaxed) };
        self.drain(f);
    }

    /// Takes tasks until none is left. A panic is kept for the caller and ends the taking.
    fn drain(&self, f: &(dyn Fn(usize) + Sync)) {
        let tasks = self.tasks.load(Ordering::Relaxed);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    return;
                }
                f(i);
            }
        }));
        if let Err(payload) = ran {
            self.next.store(tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until the state satisfies `ready`: spins a while, then parks.
    fn wait(&self, ready: impl Fn(u64) -> bool) -> u64 {
        for _ in 0..SPINS {
            let state = self.state.load(Ordering::SeqCst);
            if ready(state) {
                return state;
            }
            std::hint::spin_loop();
        }
        let mut door = lock(&self.door);
        self.parked.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if ready(state) {
                break state;
            }
            door = self.bell.wait(door).unwrap_or_else(PoisonError::into_inner);
        };
        self.parked.fetch_sub(1, Ordering::SeqCst);
        state
    }

    /// Wakes parked threads after a change of the state. A thread counts itself as parked before
    /// it looks at the state for the last time, so none is missed.
    fn ring(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.door));
            self.bell.notify_all();
        }
    }
}

/// Locks; a panic elsewhere leaves nothing half-done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::noise::pool;

    fn counters(len: usize) -> Vec<AtomicU32> {
        (0..len).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn every_task_runs_once() {
        for threads in 1..=4 {
            let pool = pool(threads);
            for tasks in [0, 1, 2, 3, 100] {
                let runs = counters(tasks);
                pool.run(tasks, &|i| {
                    runs[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn thousands_of_short_regions_lose_no_task() {
        let pool = pool(3);
        let sum = AtomicUsize::new(0);
        for _ in 0..20_000 {
            pool.run(5, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 20_000 * 10);
    }

    #[test]
    fn workers_wake_after_a_pause() {
        let pool = pool(2);
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(5));
            let both = std::sync::Barrier::new(2);
            pool.run(2, &|_| {
                both.wait();
            });
        }
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = pool(2);
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(4, &|i| {
                            let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::SeqCst);
                            sum.fetch_add(i, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 200 * 6);
        assert!(most.into_inner() <= 2, "two threads run tasks, whoever calls");
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for threads in [1, 2] {
            let pool = pool(threads);
            for bad in [0, 7, 19] {
                let ran = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(20, &|i| assert!(i != bad, "task {i}"));
                }));
                let message = *ran.unwrap_err().downcast::<String>().unwrap();
                assert_eq!(message, format!("task {bad}"));
                every_task_of(&pool);
            }
        }
    }

    fn every_task_of(pool: &Pool) {
        let runs = counters(10);
        pool.run(10, &|i| {
            runs[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn rows_are_cut_into_runs_that_cover_them_all() {
        for threads in [1, 2, 3] {
            let pool = pool(threads);
            for t in [0, 1, 2, 7, 100] {
                let mut rows = vec![-1.0; t * 3];
                pool.rows(&mut rows, 3, |first, run| {
                    for (i, x) in run.iter_mut().enumerate() {
                        *x = (first * 3 + i) as f32;
                    }
                });
                assert!(rows.iter().enumerate().all(|(i, &x)| x == i as f32), "{t} on {threads}");
            }
        }
    }

    #[test]
    fn an_idle_pool_parks() {
        let pool = pool(3);
        pool.run(3, &|_| ());
        let begin = Instant::now();
        while pool.shared.parked.load(Ordering::SeqCst) < 2 {
            assert!(begin.elapsed() < Duration::from_secs(20), "both workers park soon");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

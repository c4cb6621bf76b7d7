//! Which models make room for another: the policy, and nothing but.
//!
//! Weights of all models together keep to one limit. A model that is wanted and does not fit has
//! the ones go that have been without a request for longest, and of these only those without which it
//! would not fit. One that runs a request never goes, and one that was loaded a moment ago does not go either: two models that are asked
//! in turns and do not fit beside each other would be read again and again for nothing else.

use std::cmp::Reverse;
use std::time::Duration;

/// How long a model stays at least, before it makes room for another.
pub const STAY: Duration = Duration::from_secs(10);

/// A model, as far as room is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    /// It takes nothing.
    Out,
    /// It comes or goes, and takes so many bytes meanwhile.
    Moving(u64),
    /// It is in memory.
    In {
        /// What it takes.
        bytes: u64,
        /// For how long it has had no request; `None` while it has one.
        idle: Option<Duration>,
        /// For how long it has been there.
        age: Duration,
    },
}

/// What is to be done for so many more bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// Nothing: they fit.
    Free,
    /// These models go first.
    After(Vec<usize>),
    /// Wait: so many bytes are taken, and nobody may go.
    Full(u64),
}

impl Tenant {
    fn bytes(&self) -> u64 {
        match *self {
            Self::Out => 0,
            Self::Moving(bytes) | Self::In { bytes, .. } => bytes,
        }
    }

    /// For how long it has been of no use, and what it takes, when it may go.
    fn spare(&self) -> Option<(Duration, u64)> {
        match *self {
            Self::In { bytes, idle: Some(idle), age } if age >= STAY => Some((idle, bytes)),
            _ => None,
        }
    }
}

/// Whether `wanted` bytes fit under `limit` beside `tenants`, or who goes.
pub fn room(wanted: u64, limit: u64, tenants: &[Tenant]) -> Room {
    let taken: u64 = tenants.iter().map(Tenant::bytes).sum();
    let excess = (taken + wanted).saturating_sub(limit);
    if excess == 0 {
        return Room::Free;
    }
    let mut spare: Vec<_> = tenants
        .iter()
        .enumerate()
        .filter_map(|(at, tenant)| tenant.spare().map(|(idle, bytes)| (Reverse(idle), at, bytes)))
        .collect();
    spare.sort_unstable();
    let mut freed = 0;
    let enough = spare.iter().take_while(|(_, _, bytes)| {
        let more = freed < excess;
        freed += if more { *bytes } else { 0 };
        more
    });
    let mut go: Vec<_> = enough.map(|(_, at, bytes)| (*at, *bytes)).collect();
    if freed < excess {
        return Room::Full(taken);
    }
    // The last one may make up for small ones before it.
    go.retain(|(_, bytes)| {
        let needed = freed - bytes < excess;
        freed -= if needed { 0 } else { *bytes };
        needed
    });
    Room::After(go.into_iter().map(|(at, _)| at).collect())
}

/// The models that nobody has asked for `limit`.
pub fn overdue(limit: Duration, tenants: &[Tenant]) -> Vec<usize> {
    let idle = |tenant: &Tenant| match *tenant {
        Tenant::In { idle: Some(idle), age, .. } => idle.min(age) >= limit,
        _ => false,
    };
    tenants.iter().enumerate().filter(|(_, tenant)| idle(tenant)).map(|(at, _)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn idle(bytes: u64, seconds: u64) -> Tenant {
        let idle = Some(Duration::from_secs(seconds));
        Tenant::In { bytes, idle, age: Duration::from_secs(1000) }
    }

    const fn busy(bytes: u64) -> Tenant {
        Tenant::In { bytes, idle: None, age: Duration::from_secs(1000) }
    }

    const fn fresh(bytes: u64) -> Tenant {
        let idle = Some(Duration::from_secs(9));
        Tenant::In { bytes, idle, age: Duration::from_secs(9) }
    }

    #[test]
    fn who_makes_room() {
        let cases: [(&str, u64, &[Tenant], Room); 11] = [
            ("what fits fits", 40, &[idle(60, 5)], Room::Free),
            ("what is out takes nothing", 100, &[Tenant::Out, Tenant::Out], Room::Free),
            ("the longest idle goes", 40, &[idle(60, 5), idle(30, 7)], Room::After(vec![1])),
            ("as few as do", 10, &[idle(50, 9), idle(50, 8)], Room::After(vec![0])),
            ("two when one is not enough", 60, &[idle(50, 1), idle(50, 2)], {
                Room::After(vec![1, 0])
            }),
            ("a busy one stays", 40, &[busy(60), idle(40, 1)], Room::After(vec![1])),
            ("no small one beside one that does", 50, &[idle(5, 9), idle(60, 1)], {
                Room::After(vec![1])
            }),
            ("nobody goes in vain", 80, &[busy(60), idle(40, 1)], Room::Full(100)),
            ("a fresh one stays", 40, &[fresh(80)], Room::Full(80)),
            ("what comes or goes counts", 40, &[Tenant::Moving(80)], Room::Full(80)),
            ("nothing wanted, too much there", 0, &[busy(90), idle(20, 1)], Room::After(vec![1])),
        ];
        for (case, wanted, tenants, expected) in cases {
            assert_eq!(room(wanted, 100, tenants), expected, "{case}");
        }
    }

    #[test]
    fn room_is_never_promised_beyond_the_limit_and_never_at_a_busy_ones_cost() {
        let kinds =
            [Tenant::Out, Tenant::Moving(30), idle(30, 5), idle(20, 6), busy(30), fresh(30)];
        for code in 0..6_usize.pow(4) {
            let tenants: Vec<_> = (0..4).map(|at| kinds[code / 6_usize.pow(at) % 6]).collect();
            let bytes = |at: &usize| tenants[*at].bytes();
            let taken: u64 = tenants.iter().map(Tenant::bytes).sum();
            match room(40, 100, &tenants) {
                Room::Free => assert!(taken + 40 <= 100, "{tenants:?}"),
                Room::After(go) => {
                    let left = taken - go.iter().map(bytes).sum::<u64>();
                    assert!(taken + 40 > 100 && left + 40 <= 100, "{tenants:?}");
                    assert!(go.iter().all(|at| tenants[*at].spare().is_some()), "{tenants:?}");
                }
                Room::Full(told) => {
                    let spare: u64 = tenants.iter().filter_map(Tenant::spare).map(|(_, b)| b).sum();
                    assert!(told == taken && taken - spare + 40 > 100, "{tenants:?}");
                }
            }
        }
    }

    #[test]
    fn a_model_is_overdue_when_it_has_been_there_and_idle_for_as_long() {
        let limit = Duration::from_secs(8);
        let tenants = [idle(1, 7), idle(1, 8), busy(1), fresh(1), Tenant::Moving(1), Tenant::Out];
        assert_eq!(overdue(limit, &tenants), [1, 3]);
    }
}

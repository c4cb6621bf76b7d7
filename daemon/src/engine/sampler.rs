//! From logits to a token.
//!
//! Randomness is counter-based: the draw depends on the seed, the choice and the token's position,
//! never on what else ran. Candidates are ordered by logit, ties by the lower id, and summed in that order.

use tinygpt_kernels::sample;

use super::constraint::Mask;
use super::event::Token;
use super::job::Sampling;

/// Candidates looked at first when a vocabulary is cut by mass.
const SHORTLIST: usize = 256;

/// Where a token goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Of the texts that the request asked for, which.
    pub(super) choice: u32,
    /// Tokens before it, the prompt's included.
    pub(super) position: u64,
}

/// Chooses tokens. What it holds between two of them means nothing; it is kept so that a token takes
/// no memory, but for a constraint's mask and log-probabilities.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    adjusted: Vec<f32>,
    weights: Vec<f32>,
    candidates: Vec<(u32, f32)>,
    /// How often each id was seen; all zero between two tokens.
    counts: Vec<u32>,
}

impl Sampler {
    /// Chooses the token at `place` from `logits [V]`, after the text `generated` of a prompt whose
    /// ids are `prompt`.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        prompt: &[u32],
        generated: &[u32],
        place: Place,
    ) -> Token {
        let Self { adjusted, weights, candidates, counts } = self;
        let mut considered = logits;
        if adjusts(sampling) {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            counts.resize(logits.len(), 0);
            penalise(adjusted, sampling, prompt, generated, counts);
            forbid(adjusted, sampling);
            considered = adjusted;
        }
        let id = if sampling.temperature > 0.0 {
            draw(weights, candidates, considered, sampling, place)
        } else {
            index(sample::argmax(considered))
        };
        Token { choice: place.choice, ..describe(logits, id, sampling.logprobs) }
    }
}

/// The token `id` of the first choice with its log-probability under `logits [V]`, and the `top` likeliest.
pub(super) fn describe(logits: &[f32], id: u32, top: Option<usize>) -> Token {
    let Some(top) = top else {
        return Token { choice: 0, id, logprob: None, top: Vec::new() };
    };
    let total = sample::logsumexp(logits);
    let logprob = Some(logits[id as usize] - total);
    let mut likely = Vec::new();
    likeliest(&mut likely, logits, top);
    let top = likely.into_iter().map(|(id, logit)| (id, logit - total)).collect();
    Token { choice: 0, id, logprob, top }
}

/// Whether anything but the logits decides which token is likeliest.
fn adjusts(sampling: &Sampling) -> bool {
    let penalties = [sampling.presence_penalty, sampling.frequency_penalty];
    sampling.repetition_penalty != 1.0
        || penalties != [0.0; 2]
        || !sampling.logit_bias.is_empty()
        || sampling.constraint.as_ref().is_some_and(|known| known.masks())
}

fn penalise(
    logits: &mut [f32],
    sampling: &Sampling,
    prompt: &[u32],
    generated: &[u32],
    counts: &mut [u32],
) {
    let penalty = sampling.repetition_penalty;
    if penalty != 1.0 {
        each_id(prompt.iter().chain(generated), counts, |id, _| {
            let logit = &mut logits[id];
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        });
    }
    if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
        each_id(generated.iter(), counts, |id, count| {
            let frequency = sampling.frequency_penalty * count as f32;
            logits[id] -= sampling.presence_penalty + frequency;
        });
    }
    for (id, bias) in &sampling.logit_bias {
        logits[*id as usize] += bias;
    }
    // A token may be ruled out, but none is infinitely likely: nothing could be compared with it.
    logits.iter_mut().filter(|logit| **logit > f32::MAX).for_each(|logit| *logit = f32::MAX);
}

/// Calls `see` once for each of the ids, with how often it comes; `counts [V]` is all zero before and
/// after.
fn each_id<'i>(
    ids: impl Iterator<Item = &'i u32> + Clone,
    counts: &mut [u32],
    mut see: impl FnMut(usize, u32),
) {
    ids.clone().for_each(|id| counts[*id as usize] += 1);
    for id in ids {
        let id = *id as usize;
        let count = std::mem::take(&mut counts[id]);
        if count > 0 {
            see(id, count);
        }
    }
}

fn forbid(logits: &mut [f32], sampling: &Sampling) {
    let Some(constraint) = sampling.constraint.as_ref().filter(|known| known.masks()) else {
        return;
    };
    let mut mask = Mask::all(logits.len());
    constraint.mask(&mut mask);
    for (id, logit) in logits.iter_mut().enumerate() {
        if !mask.allows(index(id)) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Draws from the candidates that the filters leave: the `top_k` largest logits, of these the ones
/// at least `min_p` times as likely as the first, of these the fewest that hold the fraction
/// `top_p` of the mass.
fn draw(
    weights: &mut Vec<f32>,
    candidates: &mut Vec<(u32, f32)>,
    logits: &[f32],
    sampling: &Sampling,
    place: Place,
) -> u32 {
    weights.resize(logits.len(), 0.0);
    sample::weights(logits, sampling.temperature, weights);
    let likely = match sampling.min_p > 0.0 {
        true => weights.iter().filter(|weight| **weight >= sampling.min_p).count().max(1),
        false => logits.len(),
    };
    let keep = if sampling.top_k == 0 { likely } else { likely.min(sampling.top_k) };
    let random = sample::uniform(sampling.seed, place.choice, place.position);
    if keep == logits.len() && sampling.top_p >= 1.0 {
        return index(pick(weights.iter().copied(), random));
    }
    nucleus(candidates, logits, weights, keep, sampling.top_p);
    candidates[pick(candidates.iter().map(|(id, _)| weights[*id as usize]), random)].0
}

/// The place in `weights` where the fraction `random` of their sum is reached.
fn pick(
    weights: impl DoubleEndedIterator<Item = f32> + ExactSizeIterator + Clone,
    random: f32,
) -> usize {
    let mut left = random * weights.clone().sum::<f32>();
    let reached = weights.clone().position(|weight| {
        left -= weight;
        left < 0.0
    });
    reached.unwrap_or_else(|| weights.clone().rposition(|weight| weight > 0.0).unwrap_or(0))
}

/// Leaves in `candidates` the fewest of the `keep` likeliest that hold the fraction `top_p` of their
/// mass, in order. Few hold most of it, so a long vocabulary is not sorted: the shortlist grows until
/// it suffices.
fn nucleus(
    candidates: &mut Vec<(u32, f32)>,
    logits: &[f32],
    weights: &[f32],
    keep: usize,
    top_p: f32,
) {
    let mut count = keep.min(if top_p < 1.0 && keep == logits.len() { SHORTLIST } else { keep });
    loop {
        likeliest(candidates, logits, count);
        let mass = |candidates: &[(u32, f32)]| -> f32 {
            candidates.iter().map(|(id, _)| weights[*id as usize]).sum()
        };
        let whole = if keep == logits.len() { sample::total(weights) } else { mass(candidates) };
        let mut left = top_p * whole;
        let fewest = candidates.iter().position(|(id, _)| {
            left -= weights[*id as usize];
            left <= 0.0
        });
        match fewest {
            Some(last) => candidates.truncate(last + 1),
            None if count < keep => {
                count = keep.min(16 * count);
                continue;
            }
            None => {}
        }
        return;
    }
}

/// Leaves in `kept` the `count` largest logits with their ids, largest first, ties by the lower id.
///
/// One pass over the vocabulary keeps what may be among them, and is cut back when that has become
/// twice as many.
fn likeliest(kept: &mut Vec<(u32, f32)>, logits: &[f32], count: usize) {
    kept.clear();
    let count = count.min(logits.len());
    if count == 0 {
        return;
    }
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    // A later id must beat the last that stays: of equals the lower id wins.
    let mut bar = None;
    for (id, &logit) in logits.iter().enumerate() {
        if bar.is_some_and(|bar| logit.total_cmp(&bar).is_le()) {
            continue;
        }
        if kept.len() == 2 * count {
            let (_, last, _) = kept.select_nth_unstable_by(count - 1, order);
            bar = Some(last.1);
            kept.truncate(count);
        }
        kept.push((index(id), logit));
    }
    kept.sort_unstable_by(order);
    kept.truncate(count);
}

fn index(id: usize) -> u32 {
    u32::try_from(id).expect("a vocabulary has fewer than 2^32 ids")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(l: &[f32], s: &Sampling, prompt: &[u32], generated: &[u32], at: Place) -> Token {
        Sampler::default().choose(l, s, prompt, generated, at)
    }

    fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
        let mut kept = Vec::new();
        super::likeliest(&mut kept, logits, count);
        kept
    }

    fn at(position: u64) -> Place {
        Place { choice: 0, position }
    }

    fn hot() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::greedy(1) }
    }

    fn drawn(logits: &[f32], sampling: &Sampling) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for position in 0..20_000 {
            counts[choose(logits, sampling, &[], &[], at(position)).id as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lower_id_of_equals() {
        assert_eq!(choose(&[1.0, 3.0, 3.0], &Sampling::greedy(1), &[], &[], at(0)).id, 1);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let counts = drawn(&[0.0, 1.0_f32.ln() + 2.0_f32.ln(), f32::NEG_INFINITY], &hot());
        assert_eq!(counts[2], 0);
        let share = counts[1] as f32 / 20_000.0;
        assert!((share - 2.0 / 3.0).abs() < 0.02, "{share}");
    }

    #[test]
    fn the_same_seed_and_position_draw_the_same_token() {
        let logits = [0.1, 0.2, 0.3, 0.4];
        let draws = |seed| {
            let sampling = Sampling { seed, ..hot() };
            (0..64).map(|p| choose(&logits, &sampling, &[], &[], at(p)).id).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn each_choice_draws_its_own_tokens() {
        let logits = [0.1, 0.2, 0.3, 0.4];
        let draws = |choice| {
            let place = |position| Place { choice, position };
            (0..64).map(|p| choose(&logits, &hot(), &[], &[], place(p)).id).collect::<Vec<_>>()
        };
        assert_ne!(draws(0), draws(1));
        assert_ne!(draws(1), draws(2));
    }

    #[test]
    fn filters_keep_only_the_likely() {
        let logits = [3.0, 2.0, 1.0, 0.0];
        let support = |sampling| drawn(&logits, &sampling).iter().filter(|n| **n > 0).count();
        assert_eq!(support(Sampling { top_k: 2, ..hot() }), 2);
        assert_eq!(support(Sampling { top_p: 0.6, ..hot() }), 1);
        assert_eq!(support(Sampling { top_p: 0.7, ..hot() }), 2);
        assert_eq!(support(Sampling { min_p: 0.1, ..hot() }), 3);
        assert_eq!(support(hot()), 4);
    }

    /// The definition: sort everything, then cut.
    fn sorted(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
        let mut all = likeliest(logits, logits.len());
        let peak = all[0].1;
        let weight = |logit: f32| f64::from((logit - peak) / sampling.temperature).exp();
        all.truncate(if sampling.top_k == 0 { all.len() } else { sampling.top_k });
        all.retain(|(_, logit)| weight(*logit) >= f64::from(sampling.min_p));
        let mass: f64 = all.iter().map(|(_, logit)| weight(*logit)).sum();
        let mut left = mass * f64::from(sampling.top_p);
        let kept = all.iter().take_while(|(_, logit)| {
            let open = left > 0.0;
            left -= weight(*logit);
            open
        });
        kept.map(|(id, _)| *id).collect()
    }

    #[test]
    fn a_penalty_that_makes_logits_infinite_leaves_tokens_to_draw() {
        let repetition_penalty = f32::MIN_POSITIVE;
        for temperature in [1.0, 0.01] {
            let sampling = Sampling { repetition_penalty, temperature, ..Sampling::greedy(1) };
            let drawn = choose(&[9.0, 8.0, 1.0], &sampling, &[0, 1], &[], at(7)).id;
            assert!(drawn < 2, "{drawn}");
        }
    }

    #[test]
    fn the_likeliest_are_the_first_of_all_sorted_whatever_their_order_and_ties() {
        let uniform = |i| sample::uniform(3, 0, i);
        let orders: [fn(f32) -> f32; 4] = [|x| x, |x| (8.0 * x).floor(), |_| 1.0, |x| -x];
        for order in orders {
            let mut logits: Vec<f32> = (0..1_000).map(|i| order(uniform(i))).collect();
            for ascending in [false, true] {
                if ascending {
                    logits.sort_unstable_by(f32::total_cmp);
                }
                let mut all: Vec<_> =
                    logits.iter().enumerate().map(|(i, x)| (index(i), *x)).collect();
                all.sort_by(|a, b| b.1.total_cmp(&a.1));
                for count in [0, 1, 2, 40, 499, 500, 501, 999, 1_000, 1_001] {
                    assert_eq!(likeliest(&logits, count), all[..count.min(1_000)], "{count}");
                }
            }
        }
    }

    #[test]
    fn a_large_vocabulary_is_cut_as_if_it_were_sorted() {
        let logits: Vec<f32> = (0..5_000).map(|i| 9.0 * sample::uniform(1, 0, i)).collect();
        let filters = [(0, 1.0, 0.0), (50, 1.0, 0.0), (0, 0.5, 0.0), (0, 0.9999, 0.0)];
        for (top_k, top_p, min_p) in filters.into_iter().chain([(0, 0.9, 0.2), (700, 0.3, 0.01)]) {
            let sampling = Sampling { top_k, top_p, min_p, ..hot() };
            let allowed = sorted(&logits, &sampling);
            let mut seen = std::collections::BTreeSet::new();
            for position in 0..4_000 {
                seen.insert(choose(&logits, &sampling, &[], &[], at(position)).id);
            }
            let strays = seen.iter().filter(|id| !allowed.contains(id)).count();
            assert_eq!(strays, 0, "{top_k} {top_p} {min_p}: of {} allowed", allowed.len());
            let head = &allowed[..allowed.len().min(20)];
            let share = head.iter().filter(|id| seen.contains(id)).count();
            assert!(share > head.len() / 2, "{top_k} {top_p} {min_p}: {share} of the likeliest");
        }
    }

    #[test]
    fn penalties_push_seen_tokens_down_and_bias_pulls_up() {
        let logits = [2.0, 1.9, -1.0];
        let repeated = Sampling { repetition_penalty: 2.0, ..Sampling::greedy(1) };
        assert_eq!(choose(&logits, &repeated, &[0], &[], at(0)).id, 1);
        let present = Sampling { presence_penalty: 0.5, ..Sampling::greedy(1) };
        assert_eq!(choose(&logits, &present, &[0], &[], at(0)).id, 0);
        assert_eq!(choose(&logits, &present, &[], &[0], at(0)).id, 1);
        let biased = Sampling { logit_bias: vec![(2, 10.0)], ..Sampling::greedy(1) };
        assert_eq!(choose(&logits, &biased, &[], &[], at(0)).id, 2);
    }

    #[test]
    fn penalties_count_what_is_theirs_to_count_and_leave_nothing_for_the_next_token() {
        let logits = [4.0, 4.0, 4.0, -4.0];
        let sampling = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            ..Sampling::greedy(1)
        };
        let mut counts = [0; 4];
        for _ in 0..2 {
            let mut adjusted = logits;
            penalise(&mut adjusted, &sampling, &[0, 0, 3], &[1, 1, 1], &mut counts);
            assert_eq!(adjusted, [2.0, 2.0 - 0.25 - 3.0 * 0.5, 4.0, -8.0]);
            assert_eq!(counts, [0; 4]);
        }
    }

    #[test]
    fn log_probabilities_are_those_of_the_model_not_of_the_filters() {
        let sampling = Sampling { logprobs: Some(2), temperature: 0.5, ..Sampling::greedy(1) };
        let token = choose(&[0.0, 0.0], &sampling, &[], &[], at(0));
        assert!((token.logprob.unwrap_or(0.0) + 2.0_f32.ln()).abs() < 1e-6);
        assert_eq!(token.top.len(), 2);
    }
}

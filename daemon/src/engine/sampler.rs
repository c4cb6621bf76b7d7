//! From logits to a token.
//!
//! Randomness is counter-based: the draw depends on the seed and on the token's position, never on
//! what else ran. Candidates are ordered by logit, ties by the lower id, and summed in that order.

use tinygpt_kernels::sample;

use super::constraint::Mask;
use super::job::{Sampling, Token};

/// Chooses the token at `position` from `logits [V]`, after the text `generated` of a prompt
/// whose ids are `prompt`.
pub(super) fn choose(
    logits: &[f32],
    sampling: &Sampling,
    prompt: &[u32],
    generated: &[u32],
    position: u64,
) -> Token {
    let mut adjusted = logits.to_vec();
    penalise(&mut adjusted, sampling, prompt, generated);
    forbid(&mut adjusted, sampling);
    let id = if sampling.temperature > 0.0 {
        draw(&adjusted, sampling, position)
    } else {
        index(sample::argmax(&adjusted))
    };
    describe(logits, id, sampling.logprobs)
}

/// The token `id` with its log-probability under `logits [V]`, and the `top` likeliest.
pub(super) fn describe(logits: &[f32], id: u32, top: Option<usize>) -> Token {
    let Some(top) = top else { return Token { id, logprob: None, top: Vec::new() } };
    let total = sample::logsumexp(logits);
    let logprob = Some(logits[id as usize] - total);
    let top = likeliest(logits, top).into_iter().map(|(id, logit)| (id, logit - total)).collect();
    Token { id, logprob, top }
}

fn penalise(logits: &mut [f32], sampling: &Sampling, prompt: &[u32], generated: &[u32]) {
    let penalty = sampling.repetition_penalty;
    if penalty != 1.0 {
        let mut seen: Vec<u32> = prompt.iter().chain(generated).copied().collect();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
    if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
        let mut counts = std::collections::BTreeMap::<u32, u32>::new();
        generated.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
        for (id, count) in counts {
            let frequency = sampling.frequency_penalty * count as f32;
            logits[id as usize] -= sampling.presence_penalty + frequency;
        }
    }
    for (id, bias) in &sampling.logit_bias {
        logits[*id as usize] += bias;
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

fn draw(logits: &[f32], sampling: &Sampling, position: u64) -> u32 {
    let keep = if sampling.top_k == 0 { logits.len() } else { sampling.top_k };
    let candidates = likeliest(logits, keep);
    let peak = candidates[0].1;
    let weight =
        |logit: f32| tinygpt_kernels::elementary::exp((logit - peak) / sampling.temperature);
    let mut weights: Vec<f32> = candidates.iter().map(|(_, logit)| weight(*logit)).collect();
    let likely = weights.iter().take_while(|weight| **weight >= sampling.min_p).count();
    weights.truncate(likely.max(1));
    truncate_to_mass(&mut weights, sampling.top_p);
    let total: f32 = weights.iter().sum();
    let mut left = sample::uniform(sampling.seed, 0, position) * total;
    for (weight, (id, _)) in weights.iter().zip(&candidates) {
        left -= weight;
        if left < 0.0 {
            return *id;
        }
    }
    candidates[weights.len() - 1].0
}

/// Keeps the shortest run from the front that holds the fraction `top_p` of the whole.
fn truncate_to_mass(weights: &mut Vec<f32>, top_p: f32) {
    if top_p >= 1.0 {
        return;
    }
    let wanted = weights.iter().sum::<f32>() * top_p;
    let mut mass = 0.0;
    let below = weights.iter().take_while(|weight| {
        let open = mass < wanted;
        mass += **weight;
        open
    });
    let kept = below.count();
    weights.truncate(kept.max(1));
}

/// The `count` largest logits with their ids, largest first, ties by the lower id.
fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let mut all: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, x)| (index(i), *x)).collect();
    if count == 0 {
        return Vec::new();
    }
    if count < all.len() {
        all.select_nth_unstable_by(count - 1, order);
        all.truncate(count);
    }
    all.sort_unstable_by(order);
    all
}

fn index(id: usize) -> u32 {
    u32::try_from(id).expect("a vocabulary has fewer than 2^32 ids")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::greedy(1) }
    }

    fn drawn(logits: &[f32], sampling: &Sampling) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for position in 0..20_000 {
            counts[choose(logits, sampling, &[], &[], position).id as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lower_id_of_equals() {
        assert_eq!(choose(&[1.0, 3.0, 3.0], &Sampling::greedy(1), &[], &[], 0).id, 1);
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
            (0..64).map(|p| choose(&logits, &sampling, &[], &[], p).id).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
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

    #[test]
    fn penalties_push_seen_tokens_down_and_bias_pulls_up() {
        let logits = [2.0, 1.9, -1.0];
        let repeated = Sampling { repetition_penalty: 2.0, ..Sampling::greedy(1) };
        assert_eq!(choose(&logits, &repeated, &[0], &[], 0).id, 1);
        let present = Sampling { presence_penalty: 0.5, ..Sampling::greedy(1) };
        assert_eq!(choose(&logits, &present, &[0], &[], 0).id, 0);
        assert_eq!(choose(&logits, &present, &[], &[0], 0).id, 1);
        let biased = Sampling { logit_bias: vec![(2, 10.0)], ..Sampling::greedy(1) };
        assert_eq!(choose(&logits, &biased, &[], &[], 0).id, 2);
    }

    #[test]
    fn log_probabilities_are_those_of_the_model_not_of_the_filters() {
        let sampling = Sampling { logprobs: Some(2), temperature: 0.5, ..Sampling::greedy(1) };
        let token = choose(&[0.0, 0.0], &sampling, &[], &[], 0);
        assert!((token.logprob.unwrap_or(0.0) + 2.0_f32.ln()).abs() < 1e-6);
        assert_eq!(token.top.len(), 2);
    }
}

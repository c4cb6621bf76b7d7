//! What a query does not see because it is too old, and scores with a cap.

use proptest::prelude::*;

use super::*;

/// Windows that end at, before and behind every kind of border.
const WINDOWS: [usize; 14] = [1, 2, 5, 31, 32, 33, 63, 64, 65, 255, 256, 257, 300, 700];

/// Values that are whole multiples of sixteen channels, and others.
fn windowed(element: Element, window: usize) -> Shape {
    let v_dim = if element == Element::F16 { 32 } else { 24 };
    Shape { window: Some(window), ..shape(6, 2, 16, v_dim, element) }
}

#[test]
fn windows_have_the_bits_of_their_reference_wherever_they_end() {
    for (i, len) in [1, 2, 32, 33, 64, 257, 300, 513, 800].into_iter().enumerate() {
        for (j, window) in WINDOWS.into_iter().enumerate() {
            let softcap = (j % 3 == 0).then_some(0.5);
            let shape = Shape { softcap, ..windowed(ELEMENTS[(i + j) % 3], window) };
            let cache = Cache::new(&shape, 1, len);
            for rows in [1, 3, 35, 300].into_iter().filter(|&rows| rows <= len) {
                let want = bits(&reference_rows(&shape, &cache, rows));
                for (isa, threads) in isas().into_iter().zip([1, 3].into_iter().cycle()) {
                    let got = last_rows(isa, threads, &shape, &cache, rows);
                    assert_eq!(got, want, "{rows} of {len}, window {window}, {isa:?}");
                }
            }
        }
    }
}

#[test]
fn windows_and_caps_agree_with_a_textbook_softmax_in_double_precision() {
    for (window, softcap) in [(1, None), (33, Some(0.3)), (100, None), (299, Some(2.0))] {
        let shape = Shape { softcap, ..windowed(Element::F32, window) };
        let cache = Cache::new(&shape, 2, 300);
        let got = reference_rows(&shape, &cache, 300);
        let q = noise(7, 300 * shape.heads * shape.k_dim);
        for (position, h) in
            [0, 31, 32, 99, 100, 256, 299].into_iter().flat_map(|p| [(p, 0), (p, 5)])
        {
            let at = position * shape.heads + h;
            let want = textbook(&shape, &cache, position, h, &q[at * shape.k_dim..][..shape.k_dim]);
            for (got, want) in got[at * shape.v_dim..][..shape.v_dim].iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 2e-6, "{got} not {want} at {position}");
            }
        }
    }
}

#[test]
fn a_window_over_everything_has_the_bits_of_none() {
    let full = shape(6, 2, 16, 24, Element::F16);
    let cache = Cache::new(&full, 3, 600);
    let all = Shape { window: Some(600), ..full };
    assert_eq!(
        last_rows(Isa::best(), 2, &all, &cache, 600),
        last_rows(Isa::best(), 2, &full, &cache, 600)
    );
}

/// Their keys and values may be anything, and may be nothing.
#[test]
fn a_query_sees_nothing_of_the_tokens_before_its_window() {
    for window in WINDOWS {
        let shape = windowed(Element::F32, window);
        let cache = Cache::new(&shape, 4, 701);
        let clean = [1, 40].map(|rows| last_rows(Isa::best(), 2, &shape, &cache, rows));
        for (clean, rows) in clean.iter().zip([1, 40_usize]) {
            let mut spoilt = Cache::new(&shape, 4, 701);
            let unseen = 701_usize.saturating_sub(rows + window - 1);
            (0..unseen).for_each(|token| spoil(&shape, &mut spoilt, token));
            for isa in isas() {
                let got = last_rows(isa, 1, &shape, &spoilt, rows);
                assert_eq!(&got, clean, "{rows} rows, window {window}, {isa:?}");
            }
        }
    }
}

fn spoil(shape: &Shape, cache: &mut Cache, token: usize) {
    let (k, v) = &mut cache.blocks[token / BLOCK];
    for row in bytemuck::cast_slice_mut::<_, f32>(k).chunks_exact_mut(BLOCK) {
        row[token % BLOCK] = f32::NAN;
    }
    for head in bytemuck::cast_slice_mut::<_, f32>(v).chunks_exact_mut(BLOCK * shape.v_dim) {
        head[token % BLOCK * shape.v_dim..][..shape.v_dim].fill(f32::INFINITY);
    }
}

#[test]
fn sequences_that_share_blocks_have_the_bits_of_each_alone_wherever_their_windows_end() {
    for (trunk, own) in [(0, 7), (64, 5), (256, 1), (992, 40), (1_024, 300)] {
        for window in [1, 20, 40, 64, 290, 300, 511, 768, 1_010, 1_300] {
            let shape = windowed(Element::F16, window);
            check_branches(&shape, trunk, |i| own + i);
        }
    }
}

#[test]
#[should_panic(expected = "a query sees itself")]
fn a_window_of_nothing_is_refused() {
    let shape = windowed(Element::F16, 0);
    let cache = Cache::new(&shape, 4, 5);
    last_rows(Isa::best(), 1, &shape, &cache, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_windowed_query_has_the_same_bits_however_its_rows_are_cut_and_whoever_travels_with_it(
        cuts in proptest::collection::vec(1_usize..130, 1..8),
        window in 1_usize..600,
        companion in 1_usize..300,
        element in 0_usize..3,
        threads in 1_usize..4,
        capped in any::<bool>(),
    ) {
        let softcap = capped.then_some(0.7);
        let shape = Shape { softcap, ..windowed(ELEMENTS[element], window) };
        let [whole, sliced] = cut(&shape, &cuts, companion, threads);
        prop_assert_eq!(whole, sliced);
    }
}

//! Packs that are whole, and packs that lie.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;

use tinygpt_kernels::{Code, Table, heap};

use super::*;
use crate::model::load::ggml::{self, GgmlType};
use crate::model::load::{BUILTIN, LoadError, load_file};

fn pool() -> Pool {
    Pool::new(NonZeroUsize::new(2).unwrap())
}

fn weights() -> Digest {
    Digest::of("test", b"weights")
}

/// A file in memory.
fn file(bytes: &[u8]) -> std::fs::File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn open(bytes: &[u8]) -> Result<Pack, PackError> {
    open_as(bytes, weights())
}

fn open_as(bytes: &[u8], weights: Digest) -> Result<Pack, PackError> {
    let map = Map::open(&file(bytes), bytes.len()).unwrap();
    let pack = Pack::open(Arc::new(map), weights)?;
    pack.verify(&pool())?;
    Ok(pack)
}

/// The matrices of the built-in model, as `packing` gives them.
fn builtin(packing: Packing<'_>) -> Result<Vec<Matrix>, LoadError> {
    load_file(&file(BUILTIN), &packing)?;
    Ok(packing.into_matrices())
}

/// What is written for `matrices`.
fn written(matrices: Vec<Matrix>) -> Vec<u8> {
    let unkept = Unkept::new(weights(), matrices);
    let mut bytes = vec![0; usize::try_from(unkept.file_bytes()).unwrap()];
    for (at, piece) in unkept.pieces() {
        bytes[at as usize..][..piece.len()].copy_from_slice(&piece);
    }
    bytes
}

/// How many types are read.
const TYPES: usize = 16;

/// A matrix of every type that is read, from bytes that depend on nothing.
fn every_type() -> Vec<Matrix> {
    let known = (0..64).filter_map(GgmlType::from_id);
    known
        .filter_map(|dtype| Some((dtype, dtype.format()?)))
        .map(|(dtype, format)| {
            let (n, k) = (19, 256);
            let row = k / dtype.block() * dtype.block_bytes();
            let bytes: Vec<u8> = (0..n * row).map(|i| ((i * i) >> 3) as u8 & 0x3b).collect();
            Matrix::build(&pool(), &heap, n, k, format, |rows, tile| {
                ggml::fill("t", dtype, &bytes[rows.start * row..rows.end * row], tile)
            })
            .unwrap()
        })
        .collect()
}

#[test]
fn a_model_from_its_pack_is_the_model_bit_for_bit() {
    let pool = pool();
    let packed = builtin(Packing::new(&pool)).unwrap();
    let pack = open(&written(packed.clone())).unwrap();
    let kept = builtin(Packing::kept(&pack)).unwrap();
    assert_eq!(kept.len(), packed.len());
    for (kept, packed) in kept.iter().zip(&packed) {
        assert_eq!((kept.n(), kept.k(), kept.format()), (packed.n(), packed.k(), packed.format()));
        assert_eq!(kept.parts(), packed.parts());
    }
}

#[test]
fn every_kind_of_weights_can_be_kept() {
    let matrices = every_type();
    assert_eq!(matrices.len(), TYPES);
    let pack = open(&written(matrices.clone())).unwrap();
    for (index, matrix) in matrices.iter().enumerate() {
        let kept = pack.matrix(index, matrix.n(), matrix.k(), matrix.format()).unwrap();
        assert_eq!((kept.parts(), kept.scales_kept()), (matrix.parts(), matrix.scales_kept()));
    }
    assert!(pack.matrix(TYPES, 19, 256, Format::F32).is_none());
    assert!(pack.matrix(0, 20, 256, Format::F32).is_none());
    assert!(pack.matrix(0, 19, 256, Format::F16).is_none());
}

#[test]
fn weights_that_mlx_quantised_can_be_kept() {
    let (n, k, codes) = (19, 64, vec![1; 19 * 64]);
    let matrix = |format, scale, min: Option<&[f32]>| {
        Matrix::from_codes(n, k, format, &codes, &[scale; 38], min)
    };
    let code = Code { bits: 2, zero: 0 };
    let matrices = [
        matrix(Format::Affine { code, group: 32, min: true }, 0.5, Some(&[0.25; 38])),
        // Scales beyond f16, as bf16.
        matrix(Format::Table { table: Table::E2M1, group: 32 }, 2.0_f32.powi(99), None),
        matrix(Format::E4M3 { group: 32 }, 2.0_f32.powi(-99), None),
    ];
    let pack = open(&written(matrices.to_vec())).unwrap();
    for (index, matrix) in matrices.iter().enumerate() {
        let kept = pack.matrix(index, n, k, matrix.format()).unwrap();
        assert_eq!((kept.parts(), kept.scales_kept()), (matrix.parts(), matrix.scales_kept()));
    }
}

/// If this fails, packed bytes or the format have changed: raise `PACKING` of the kernels, or the
/// format's version, and then the hash. Otherwise a daemon would take old bytes for new ones.
#[test]
fn packed_bytes_change_only_with_their_version() {
    let matrices = [builtin(Packing::new(&pool())).unwrap(), every_type()].concat();
    let parts: Vec<u8> = matrices.iter().flat_map(Matrix::parts).flatten().copied().collect();
    assert_eq!(tinygpt_kernels::PACKING, 2);
    assert_eq!(blake3::hash(&parts).to_hex()[..16], *"a1d7dbada695be27");
}

#[test]
fn a_pack_with_a_changed_bit_or_another_length_is_none() {
    let whole = written(every_type());
    let data = Header::data_start(TYPES, 0);
    let spots = (0..data).step_by(7).chain((data..whole.len()).step_by(1009));
    for at in spots.chain([8, 12, 31, data - 1, data, whole.len() - 1]) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(open(&bytes).is_err(), "byte {at}");
    }
    for length in [1, 95, 96, 200, data, whole.len() - 1] {
        assert!(open(&whole[..length]).is_err(), "{length} bytes");
    }
    let longer = [&whole[..], &[0]].concat();
    assert_eq!(open(&longer).unwrap_err(), PackError::Header { have: longer.len() });
    assert!(open(&whole).is_ok());
}

#[test]
fn a_pack_that_lies_about_its_sizes_is_refused_before_anything_is_believed() {
    for (at, number) in [(12, u64::MAX), (96, u64::MAX), (120, u64::MAX), (120, 1 << 40)] {
        let mut bytes = written(every_type());
        let width = if at == 12 { 4 } else { 8 };
        bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
        let have = bytes.len();
        assert_eq!(open(&bytes).unwrap_err(), PackError::Header { have }, "{at}");
    }
}

#[test]
fn a_pack_of_another_model_or_build_is_told_apart() {
    let mut bytes = written(every_type());
    let other = Digest::of("test", b"others");
    assert_eq!(open_as(&bytes, other).unwrap_err(), PackError::Weights { found: weights() });
    bytes[64] ^= 1;
    assert_eq!(open(&bytes).unwrap_err(), PackError::Build);
    assert_eq!(open(b"tgkv-pak").unwrap_err(), PackError::NotAPack { have: 8 });
}

#[test]
fn a_pack_whose_matrices_are_not_the_readers_is_an_error_with_the_place() {
    let pack = open(&written(every_type())).unwrap();
    let error = builtin(Packing::kept(&pack)).unwrap_err();
    assert!(matches!(error, LoadError::Kept { index: 0, .. }), "{error}");
}

#[test]
fn a_file_that_is_not_finished_is_no_pack() {
    let unkept = Unkept::new(weights(), every_type());
    let mut bytes = vec![0; usize::try_from(unkept.file_bytes()).unwrap()];
    for (at, piece) in unkept.pieces() {
        assert!(open(&bytes).is_err());
        bytes[at as usize..][..piece.len()].copy_from_slice(&piece);
    }
    assert!(open(&bytes).is_ok());
}

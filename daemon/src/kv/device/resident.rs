//! The rows of one sequence on a device.

use std::ops::Range;
use std::rc::Rc;

use candle_core::{DType, Tensor};
use tinygpt_kernels::Shape;

use super::run::{Run, arrange};
use super::tier::Tier;
use super::{DeviceError, attend};
use crate::kv::block::Block;
use crate::kv::codec::Codec;
use crate::kv::key::BlockKey;
use crate::kv::layout::{BLOCK, Layout, Window};
use crate::kv::seq::KvSeq;

/// A new run of a sequence has room for at least so many rows, and for as many as the sequence
/// computed before: long texts have few pieces, short ones waste little.
const LEAST: usize = 128;

/// Where the rows of a sequence lie.
#[derive(Debug)]
pub struct Resident {
    tier: Tier,
    /// In the order of positions; each but the last is full.
    pieces: Vec<Piece>,
    /// Rows that count.
    len: usize,
    /// Rows that this sequence wrote, not found.
    own: usize,
    step: Step,
}

/// Rows `start..end` of a run are the sequence's next.
#[derive(Debug)]
struct Piece {
    run: Rc<Run>,
    start: usize,
    end: usize,
    /// Whether rows behind `end` are this sequence's to write.
    grows: bool,
}

/// What all layers of a step share.
#[derive(Debug, Default)]
struct Step {
    /// Rows that are computed.
    rows: usize,
    /// For each window class and each piece that its rows see some of, what is to be added to the
    /// scores of its keys, when rows may not see all.
    masks: Vec<Vec<Option<Tensor>>>,
}

/// Consecutive positions of the sequence in one piece: where they lie in its run.
pub(super) struct Stretch<'a> {
    pub(super) run: &'a Rc<Run>,
    pub(super) rows: Range<usize>,
    /// The first one's position.
    position: usize,
}

impl Resident {
    fn new(tier: &Tier) -> Self {
        let (pieces, step) = (Vec::new(), Step::default());
        Self { tier: tier.clone(), pieces, len: 0, own: 0, step }
    }

    /// Brings all rows of `seq` to the device, and makes room for `rows` more.
    ///
    /// # Errors
    /// When there is no room, or the device fails: the sequence then has nothing there, and a
    /// later attempt begins anew.
    pub fn prepare(tier: &Tier, seq: &mut KvSeq, rows: usize) -> Result<(), DeviceError> {
        let mut resident = seq.resident.take().unwrap_or_else(|| Self::new(tier));
        resident.catch_up(seq)?;
        resident.extend(seq.layout(), rows)?;
        let classes = seq.layout().classes().iter();
        let masks = classes.map(|window| resident.masks(rows, *window)).collect::<Result<_, _>>();
        resident.step = Step { rows, masks: masks? };
        seq.resident = Some(resident);
        Ok(())
    }

    /// Finds or uploads the rows that the host has and the device has not.
    fn catch_up(&mut self, seq: &KvSeq) -> Result<(), DeviceError> {
        let layout = seq.layout();
        while self.len < seq.sealed().len() * BLOCK {
            let next = self.len / BLOCK;
            match self.tier.find(&seq.sealed()[next].key) {
                Some((run, row)) => self.attach(run, row),
                None => self.upload_sealed(layout, &seq.sealed()[next..])?,
            }
        }
        let tail = seq.len() - self.len;
        if tail > 0 {
            self.extend(layout, tail)?;
            self.upload(layout, &seq.open_bytes(), tail)?;
            self.len += tail;
        }
        // A chain's end goes before its beginning, without which it is of no use.
        self.pieces.iter().rev().for_each(|piece| self.tier.touch(&piece.run));
        Ok(())
    }

    fn attach(&mut self, run: Rc<Run>, row: usize) {
        match self.pieces.last_mut() {
            Some(last) if Rc::ptr_eq(&last.run, &run) && last.end == row => last.end += BLOCK,
            _ => self.pieces.push(Piece { run, start: row, end: row + BLOCK, grows: false }),
        }
        self.len += BLOCK;
    }

    /// Uploads the first of `blocks` that the tier does not have, up to the next one that it has.
    fn upload_sealed(
        &mut self,
        layout: &Layout,
        blocks: &[std::sync::Arc<Block>],
    ) -> Result<(), DeviceError> {
        let known = blocks.iter().position(|block| self.tier.find(&block.key).is_some());
        let blocks = &blocks[..known.unwrap_or(blocks.len())];
        let rows = blocks.len() * BLOCK;
        let run = self.tier.room(layout, rows)?;
        self.pieces.push(Piece { run: Rc::clone(&run), start: 0, end: rows, grows: false });
        let parts: Vec<Vec<&[u8]>> = blocks.iter().map(|block| block.part_bytes()).collect();
        self.upload(layout, &parts, rows)?;
        self.len += rows;
        for (at, block) in blocks.iter().enumerate() {
            self.tier.keep(block.key, &run, at * BLOCK);
        }
        Ok(())
    }

    /// Writes the first `rows` rows of blocks, given as their parts, behind the rows that count.
    fn upload(
        &self,
        layout: &Layout,
        blocks: &[Vec<&[u8]>],
        rows: usize,
    ) -> Result<(), DeviceError> {
        for layer in 0..layout.layers() {
            let (shape, class, codec) = (layout.shape(layer), layout.class(layer), layout.codec());
            let tensor = |range: Range<usize>, by_token, dim| {
                let bytes: Vec<_> =
                    blocks.iter().map(|parts| &parts[class][range.clone()]).collect();
                let rows_of = arrange(&bytes, by_token, (shape.kv_heads, dim), rows, codec);
                let shape = [shape.kv_heads, rows, dim];
                Tensor::from_raw_buffer(&rows_of, codec.dtype(), &shape, self.tier.device())
            };
            let k = tensor(layout.k(layer), false, shape.k_dim)?;
            let v = tensor(layout.v(layer), true, shape.v_dim)?;
            self.store(layer, [&k, &v], rows)?;
        }
        self.tier.count_uploaded(rows);
        Ok(())
    }

    /// Makes room for `rows` rows behind those that count.
    fn extend(&mut self, layout: &Layout, rows: usize) -> Result<(), DeviceError> {
        let end = self.len + rows;
        let mut room: usize = self.pieces.iter().map(|piece| piece.end - piece.start).sum();
        if let Some(last) = self.pieces.last_mut().filter(|last| last.grows) {
            let more = (last.run.capacity() - last.end).min(end.saturating_sub(room));
            last.end += more;
            room += more;
        }
        if room < end {
            let missing = end - room;
            let capacity = missing.max(self.own).max(LEAST).next_multiple_of(BLOCK);
            let run = self.tier.room(layout, capacity)?;
            self.pieces.push(Piece { run, start: 0, end: missing, grows: true });
        }
        self.own += rows;
        Ok(())
    }

    /// Where the positions `range` lie.
    pub(super) fn stretches(&self, range: Range<usize>) -> impl Iterator<Item = Stretch<'_>> {
        let mut position = 0;
        self.pieces.iter().filter_map(move |piece| {
            let first = position;
            position += piece.end - piece.start;
            let (from, to) = (range.start.max(first), range.end.min(position));
            (from < to).then(|| Stretch {
                run: &piece.run,
                rows: piece.start + from - first..piece.start + to - first,
                position: from,
            })
        })
    }

    /// Writes `rows` rows of keys and values `[G][rows][dim]` behind the rows that count.
    fn store(&self, layer: usize, kv: [&Tensor; 2], rows: usize) -> candle_core::Result<()> {
        for stretch in self.stretches(self.len..self.len + rows) {
            let (from, count) = (stretch.position - self.len, stretch.rows.len());
            let rows = kv.map(|rows| rows.narrow(1, from, count)?.contiguous());
            let [k, v] = rows;
            stretch.run.write(layer, stretch.rows.start, &[k?, v?])?;
        }
        Ok(())
    }

    /// Writes `layer`'s fresh rows of the step, `k [T][G*k_dim]` and `v [T][G*v_dim]` in f32, in
    /// stored form.
    ///
    /// # Errors
    /// When the device fails.
    pub fn write(
        &self,
        layout: &Layout,
        layer: usize,
        [k, v]: [&Tensor; 2],
    ) -> candle_core::Result<()> {
        let (shape, codec) = (layout.shape(layer), layout.codec());
        let heads = |rows: &Tensor, dim| {
            let rows = rows.reshape((self.step.rows, shape.kv_heads, dim))?;
            stored(&rows.transpose(0, 1)?, codec)?.contiguous()
        };
        let (k, v) = (heads(k, shape.k_dim)?, heads(v, shape.v_dim)?);
        self.store(layer, [&k, &v], self.step.rows)
    }

    /// Attends with the step's queries `q [T][H*k_dim]`, each over what the layer's window shows
    /// of all rows up to itself: `[T][H*v_dim]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn attend(
        &self,
        layout: &Layout,
        layer: usize,
        q: &Tensor,
        shape: &Shape,
    ) -> candle_core::Result<Tensor> {
        let seen = self.seen(self.step.rows, layout.window(layer));
        let pieces = self.stretches(seen).zip(&self.step.masks[layout.class(layer)]);
        let piece = |(stretch, mask): (Stretch<'_>, &Option<Tensor>)| {
            let [k, v] = stretch.run.rows(layer, stretch.rows)?;
            Ok(attend::Piece { k, v, mask: mask.clone() })
        };
        let pieces = pieces.map(piece).collect::<candle_core::Result<Vec<_>>>()?;
        attend::attend(q, &pieces, shape)
    }

    /// What rows `len..len + rows` may not see of each piece.
    fn masks(&self, rows: usize, window: Window) -> candle_core::Result<Vec<Option<Tensor>>> {
        let first = self.len;
        let seen_by_all = window.seen(first + rows - 1).start..first + 1;
        let mask = |stretch: Stretch<'_>| {
            let keys = stretch.position..stretch.position + stretch.rows.len();
            let all_seen = keys.start >= seen_by_all.start && keys.end <= seen_by_all.end;
            (!all_seen).then(|| attend::mask(first..first + rows, keys, window, self.tier.device()))
        };
        self.stretches(self.seen(rows, window)).map(|stretch| mask(stretch).transpose()).collect()
    }

    /// The positions that some of the rows `len..len + rows` see.
    fn seen(&self, rows: usize, window: Window) -> Range<usize> {
        window.seen(self.len).start..self.len + rows
    }

    /// Counts the step's rows, which every layer has written.
    fn advance(&mut self) {
        self.len += std::mem::take(&mut self.step.rows);
        self.step.masks.clear();
    }

    /// Keeps sealed block `index` for others under its name.
    pub(in crate::kv) fn keep(&self, index: usize, key: BlockKey) {
        let block = index * BLOCK..(index + 1) * BLOCK;
        if block.end > self.len {
            return;
        }
        if let Some(stretch) = self.stretches(block).next() {
            self.tier.keep(key, stretch.run, stretch.rows.start);
        }
    }
}

impl KvSeq {
    /// Its rows on the device.
    ///
    /// # Panics
    /// When none were prepared.
    pub fn resident(&self) -> &Resident {
        self.resident.as_ref().expect("rows are prepared before they are computed")
    }

    /// Counts the step's rows on the device, which every layer has written.
    pub fn advance_resident(&mut self) {
        if let Some(resident) = &mut self.resident {
            resident.advance();
        }
    }
}

/// Rows as a block would have them: values beyond f16 saturate.
fn stored(rows: &Tensor, codec: Codec) -> candle_core::Result<Tensor> {
    const MOST: f32 = 65_504.0;
    match codec {
        Codec::F32 => Ok(rows.clone()),
        Codec::F16 => rows.clamp(-MOST, MOST)?.to_dtype(DType::F16),
        Codec::BF16 => rows.to_dtype(DType::BF16),
    }
}

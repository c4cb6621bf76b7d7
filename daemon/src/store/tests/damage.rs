//! Files that lie. A cache may forget, never lie: `Kit::restore` checks every byte that it gets.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use super::kit::*;
use crate::kv::layout::BLOCK;
use crate::kv::record::Record;
use crate::kv::samples;
use crate::store::catalogue::{Farewell, FileId};
use crate::store::damage::Damage;
use crate::store::record;

/// Saves two prompts, lets `harm` loose on the first one's segment, and starts again.
fn harmed(harm: impl Fn(&Path)) -> (Kit, Vec<u32>) {
    let (mut kit, tokens) = (Kit::new(), prompt(1, 100));
    kit.save(&tokens);
    let path = kit.files_with("tgkv").remove(0);
    kit.save(&prompt(2, 100));
    kit.close();
    harm(&path);
    kit.reopen();
    (kit, tokens)
}

/// Whatever happened to the one prompt's segment: it is a miss, it is told, it is tried once, the
/// other prompt is fine, and saving again makes it good.
fn expect_quarantine(harm: impl Fn(&Path)) {
    let (mut kit, tokens) = harmed(harm);
    let restored = kit.restore(&tokens);
    assert!(restored.blocks.is_empty() && restored.partial.is_none() && restored.corrupt);
    assert_eq!(kit.handle.stats().quarantined, 1);
    // The background may have found it first, and be about to rename it.
    kit.wait_until(|kit| kit.files_with("bad").len() == 1);
    assert!(!kit.restore(&tokens).corrupt);
    assert_eq!(kit.handle.stats().quarantined, 1);
    assert_eq!(kit.found(&prompt(2, 100)), (3, true));
    kit.save(&tokens);
    kit.reopen();
    assert_eq!(kit.found(&tokens), (3, true));
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Whoever opens a pipe waits for a writer, unless it is told not to.
#[test]
fn a_pipe_in_the_place_of_a_file_is_a_miss_and_keeps_nobody_waiting() {
    expect_quarantine(|path| {
        fs::remove_file(path).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    });
}

#[test]
fn a_flipped_bit_is_a_miss_and_quarantined_once() {
    for offset in
        [0, 9, 13, 17, 21, 25, 33, 41, 73, 105, 140, 170, 300, 400, 10_000, 16_384, 16_500]
    {
        expect_quarantine(|path| {
            let byte = fs::read(path).unwrap()[offset];
            overwrite(path, offset as u64, &[byte ^ 0x10]);
        });
    }
}

#[test]
fn a_damaged_block_does_not_take_those_before_it_from_the_asker() {
    let (kit, tokens) = harmed(|path| overwrite(path, 16_384 + 2 * PART as u64, &[0; 64]));
    let restored = kit.restore(&tokens);
    assert_eq!((restored.blocks.len(), restored.corrupt), (2, true));
}

#[test]
fn a_truncated_file_is_a_miss() {
    for len in [0, 1, 8, 100, 104, 300, 16_383, 16_384, 16_500] {
        expect_quarantine(|path| {
            OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
        });
    }
}

#[test]
fn a_file_with_bytes_behind_its_end_is_a_miss() {
    expect_quarantine(|path| overwrite(path, fs::metadata(path).unwrap().len(), &[0]));
}

#[test]
fn a_future_format_version_is_a_miss() {
    expect_quarantine(|path| overwrite(path, 8, &[2]));
}

#[test]
fn a_file_of_another_family_in_the_directory_is_a_miss() {
    let (mut kit, tokens) = (Kit::new(), prompt(1, 100));
    kit.save(&tokens);
    let (ours, other) = (kit.family.fingerprint.short(), family("b"));
    kit.close();
    let root = kit.settings.dir.join("v1");
    fs::rename(root.join(ours.to_string()), root.join(other.fingerprint.short().to_string()))
        .unwrap();
    kit.reopen();
    let asked = restore(&kit.handle, &other, &tokens, 0);
    assert!(asked.blocks.is_empty() && asked.partial.is_none() && asked.record.is_none());
    assert_eq!(kit.found(&tokens), (0, false));
    kit.handle.list();
    assert_eq!(kit.handle.stats().quarantined, 2);
}

#[test]
fn a_file_under_a_name_of_the_right_family_and_the_wrong_prompt_is_a_miss() {
    let (mut kit, other) = (Kit::new(), family("b"));
    let (a, b) = (prompt(1, 100), prompt(2, 100));
    kit.save(&a);
    kit.save(&b);
    kit.handle.save(save(&other, &a));
    kit.handle.flush();
    kit.close();
    for extension in ["tgkv", "tgrec"] {
        let files = kit.files_with(extension);
        let aside = kit.settings.dir.join("aside");
        fs::rename(&files[0], &aside).unwrap();
        fs::rename(&files[1], &files[0]).unwrap();
        fs::rename(&files[2], &files[1]).unwrap();
        fs::rename(&aside, &files[2]).unwrap();
    }
    kit.reopen();
    for tokens in [&a, &b] {
        assert_eq!(kit.found(tokens), (0, false));
    }
    assert!(restore(&kit.handle, &other, &a, 0).blocks.is_empty());
    kit.handle.list();
    assert_eq!(kit.handle.stats().quarantined, 6);
}

#[test]
fn a_name_that_promises_more_or_other_blocks_is_a_miss() {
    let rename = |path: &Path, from: &str, to: &str| {
        let name = path.file_name().unwrap().to_str().unwrap();
        fs::rename(path, path.with_file_name(name.replace(from, to))).unwrap();
    };
    for blocks in ["-1.", "-2.", "-4.", "-4096.", "-4294967295."] {
        let (kit, tokens) = harmed(|path| rename(path, "-3.", blocks));
        assert!(kit.restore(&tokens).blocks.is_empty(), "{blocks}");
        kit.handle.list();
        assert_eq!(kit.handle.stats().quarantined, 1);
    }
}

#[test]
fn a_damaged_record_is_a_miss_and_its_blocks_are_not() {
    let (mut kit, tokens) = (Kit::new(), prompt(1, 100));
    kit.save(&tokens);
    kit.close();
    let path = kit.files_with("tgrec").remove(0);
    let len = fs::metadata(&path).unwrap().len();
    overwrite(&path, len - 1, &[0xff]);
    kit.reopen();
    let restored = kit.restore(&tokens);
    assert_eq!((restored.blocks.len(), restored.record, restored.corrupt), (3, None, true));
    kit.wait_until(|kit| kit.files_with("bad").len() == 1);
}

#[test]
fn a_record_of_other_sizes_than_its_family_has_is_a_miss_though_its_checksums_are_right() {
    let forgeries: [fn(&mut Record); 8] = [
        |record| record.rows.clear(),
        |record| record.rows.truncate(15),
        |record| record.rows.push(0),
        |record| record.rows.resize(4 << 20, 0),
        |record| record.hidden = Some(vec![1.0]),
        |record| record.hidden = Some(vec![1.0; 4]),
        |record| record.length += BLOCK as u32,
        |record| record.length -= BLOCK as u32,
    ];
    for forge in forgeries {
        let (mut kit, tokens) = (Kit::new(), prompt(1, 100));
        kit.save(&tokens);
        kit.close();
        let mut record = record(&kit.family, &tokens, true);
        forge(&mut record);
        let (fingerprint, layout) = (kit.family.fingerprint, kit.family.layout.digest());
        let (_, bytes) = record::encode(fingerprint, layout, &record);
        fs::write(&kit.files_with("tgrec")[0], bytes).unwrap();
        kit.reopen();
        let asked = [&tokens[..99], &[7]].concat();
        let restored = kit.restore(if record.rows.is_empty() { &asked } else { &tokens });
        assert_eq!((restored.blocks.len(), restored.record, restored.corrupt), (3, None, true));
        assert_eq!(kit.handle.stats().quarantined, 1);
    }
}

#[test]
fn blocks_of_other_sizes_than_their_family_has_are_a_miss_and_are_handed_to_nobody() {
    for len in [1, PART - 1, PART + 1, 2 * PART] {
        let (mut kit, tokens) = (Kit::new(), prompt(1, 100));
        let (publish, published) = mpsc::channel();
        kit.save_with(&tokens, |save| {
            let parts = |_: &_| vec![vec![0; len]];
            save.blocks = samples::blocks(&save.family.fingerprint, &tokens, parts);
            let publish = publish.clone();
            save.published = Box::new(move |blocks| publish.send(blocks.len()).unwrap());
        });
        assert_eq!(published.recv().unwrap(), 0);
        kit.reopen();
        let restored = kit.restore(&tokens);
        assert!(restored.blocks.is_empty() && restored.partial.is_none() && restored.corrupt);
    }
}

/// The first file with this extension, as the catalogue knows it.
fn entered(kit: &Kit, extension: &str) -> (FileId, PathBuf) {
    let shared = &kit.handle.shared;
    let ids: Vec<_> = shared.catalogue().entries().map(|(id, _)| id).collect();
    let located = ids.into_iter().filter_map(|id| Some((id, shared.locate(id)?.2)));
    let mut named = located.filter(|(_, path)| path.extension().unwrap() == extension);
    named.next().unwrap()
}

/// One thread is about to take a file away, another finds the same file, and the writer publishes
/// one of the same name.
#[test]
fn what_is_published_while_its_namesake_leaves_stays() {
    let mut kit = Kit::new();
    for seed in 1..10 {
        let tokens = prompt(seed, 100);
        for (extension, aside) in
            [("tgkv", true), ("tgkv", false), ("tgrec", true), ("tgrec", false)]
        {
            kit.save(&tokens);
            let (id, path) = entered(&kit, extension);
            let farewell = if aside { Farewell::Quarantined } else { Farewell::Gone };
            let leaving = kit.handle.shared.leave(id, farewell).unwrap();
            kit.handle.shared.report(id, &Damage::HeaderSum.into());
            kit.handle.shared.discard(id, Farewell::Gone);
            let (publish, published) = mpsc::channel();
            let mut save = save(&kit.family, &tokens);
            save.published = Box::new(move |_| publish.send(()).unwrap());
            kit.handle.save(save);
            // The writer waits for the name, or did not and is done.
            kit.wait_until(|kit| published.try_recv().is_ok() || !kit.files_with("tmp").is_empty());
            match aside {
                true => leaving.set_aside(),
                false => fs::remove_file(&path).map(|()| drop(leaving)).unwrap(),
            }
            kit.handle.flush();
            assert!(path.exists());
            assert_eq!(kit.found(&tokens), (3, true));
        }
        kit.handle.remove(&kit.family.fingerprint, &end(&kit.family, &tokens));
    }
    kit.save(&prompt(1, 100));
    kit.reopen();
    assert_eq!(kit.found(&prompt(1, 100)), (3, true));
}

#[test]
fn a_file_that_is_being_replaced_is_not_set_aside() {
    let (kit, tokens) = (Kit::new(), prompt(1, 100));
    for extension in ["tgkv", "tgrec"] {
        kit.save(&tokens);
        let (id, path) = entered(&kit, extension);
        let (family, name, _) = kit.handle.shared.locate(id).unwrap();
        assert!(kit.handle.shared.take_name(family, name));
        kit.handle.shared.report(id, &Damage::HeaderSum.into());
        assert!(path.exists() && kit.files_with("bad").is_empty());
    }
}

#[test]
fn the_bytes_of_quarantined_files_are_those_that_are_on_the_disk() {
    let (kit, tokens) = (Kit::new(), prompt(1, 100));
    for _ in 0..2 {
        kit.save(&tokens);
        let (id, _) = entered(&kit, "tgkv");
        kit.handle.shared.report(id, &Damage::HeaderSum.into());
        assert_eq!(kit.handle.stats().bytes, kit.bytes_on_disk());
    }
    fs::remove_file(&kit.files_with("bad")[0]).unwrap();
    kit.handle.gc();
    assert_eq!(kit.handle.stats().bytes, kit.bytes_on_disk());
}

#[test]
fn children_of_a_damaged_segment_are_valid_again_when_it_is_saved_again() {
    let (mut kit, tokens) = (Kit::new(), prompt(1, 8 * BLOCK));
    kit.save(&tokens[..4 * BLOCK]);
    kit.save(&tokens);
    kit.close();
    let parent = kit.files_with("tgkv").into_iter().find(|path| {
        let root = crate::kv::key::BlockKey::root(&kit.family.fingerprint).short().to_string();
        path.file_name().unwrap().to_str().unwrap().starts_with(&root)
    });
    overwrite(&parent.unwrap(), 16_384, &[0xff; 8]);
    kit.reopen();
    assert_eq!(kit.found(&tokens), (0, false));
    kit.save(&tokens[..4 * BLOCK]);
    kit.reopen();
    assert_eq!(kit.found(&tokens), (8, true));
}

#[test]
fn a_file_that_vanished_is_a_miss_without_blame() {
    let (mut kit, tokens) = (Kit::new(), prompt(1, 100));
    kit.save(&tokens);
    kit.reopen();
    kit.files().iter().for_each(|path| fs::remove_file(path).unwrap());
    let restored = kit.restore(&tokens);
    assert!(restored.blocks.is_empty() && !restored.corrupt && !restored.io_error);
    assert!(!kit.may_have(&tokens, 0));
}

#[test]
fn a_file_that_cannot_be_read_is_told_as_such_and_kept() {
    let (kit, tokens) = harmed(|path| {
        fs::remove_file(path).unwrap();
        std::os::unix::fs::symlink(path, path).unwrap();
    });
    let restored = kit.restore(&tokens);
    assert!(restored.io_error && !restored.corrupt && restored.blocks.is_empty());
    assert_eq!(kit.handle.stats().quarantined, 0);
}

#[test]
fn verify_names_every_damaged_file_and_repair_sets_them_aside() {
    let (kit, tokens) = harmed(|path| overwrite(path, 16_384, &[0xff; 8]));
    let report = kit.handle.verify(false);
    // Two segments, two records, one file of digests.
    assert_eq!((report.files, report.bad.len()), (5, 1));
    assert!(report.bad[0].1.contains("part 0 of block 0"), "{}", report.bad[0].1);
    assert_eq!(kit.handle.verify(true).bad.len(), 1);
    let report = kit.handle.verify(false);
    assert_eq!((report.files, report.bad.len()), (4, 0));
    assert_eq!(kit.found(&tokens), (0, false));
    assert_eq!(kit.handle.gc().files, 1);
    assert!(kit.files_with("bad").is_empty());
}

//! The reasons of misses.

use super::kit::*;
use crate::kv::key::{Digest, Field, Fields};
use crate::store::{Lookalike, Relative, head_digest, text_digest};

fn look(kit: &Kit, fields: Fields, tokens: &[u32], text: Option<&str>) -> Option<Relative> {
    let text = text.map(text_digest);
    kit.handle.relative(&Lookalike { fields, head: head_digest(tokens), text })
}

fn changed(kit: &Kit, field: Field) -> Fields {
    let mut fields = kit.family.fields;
    fields.set(field, Digest::of("test", b"changed"));
    fields
}

#[test]
fn the_field_that_differs_is_named_at_once_and_after_a_restart() {
    let mut kit = Kit::new();
    let tokens = prompt(1, 100);
    kit.handle.declare(&kit.family);
    kit.handle.save(save(&kit.family, &tokens));
    for _ in 0..2 {
        for field in Fields::ALL.iter().filter(|field| **field != Field::identity) {
            let told = look(&kit, changed(&kit, *field), &tokens, None);
            assert_eq!(told, Some(Relative::Differs(*field)));
        }
        assert_eq!(look(&kit, changed(&kit, Field::identity), &tokens, None), None);
        assert_eq!(look(&kit, kit.family.fields, &tokens, None), None);
        assert_eq!(look(&kit, changed(&kit, Field::codec), &prompt(2, 100), None), None);
        kit.handle.flush();
        kit.reopen();
        // Reads whatever the background has not.
        kit.handle.list();
    }
}

#[test]
fn another_tokenizer_is_told_by_the_text() {
    let mut kit = Kit::new();
    kit.save_with(&prompt(1, 100), |save| {
        let mut record = record(&save.family, &prompt(1, 100), true);
        record.text = Some(text_digest("Hello"));
        save.record = Some(record.into());
    });
    kit.reopen();
    kit.handle.list();
    let fields = changed(&kit, Field::tokenizer);
    let told = look(&kit, fields, &prompt(2, 90), Some("Hello"));
    assert_eq!(told, Some(Relative::Differs(Field::tokenizer)));
    assert_eq!(look(&kit, fields, &prompt(2, 90), Some("Hello!")), None);
}

#[test]
fn a_chain_that_was_evicted_is_remembered_as_such() {
    let kit = Kit::with(|settings, _| settings.disk_budget = 60_000);
    let tokens = prompt(1, 70);
    kit.save(&tokens);
    for seed in 2..10 {
        kit.save(&prompt(seed, 70));
    }
    assert_eq!(kit.found(&tokens), (0, false));
    assert_eq!(look(&kit, kit.family.fields, &tokens, None), Some(Relative::Evicted));
    kit.save(&tokens);
    assert_eq!(look(&kit, kit.family.fields, &tokens, None), None);
}

#[test]
fn a_family_without_files_keeps_its_digests_and_not_its_directory() {
    let mut kit = Kit::with(|settings, _| settings.disk_budget = 40_000);
    let (tokens, other) = (prompt(1, 70), family("b"));
    kit.save(&tokens);
    for seed in 2..4 {
        kit.handle.save(save(&other, &prompt(seed, 70)));
    }
    kit.handle.flush();
    kit.reopen();
    let family = kit.family.fingerprint.short();
    let root = kit.settings.dir.join("v1");
    assert!(!root.join(family.to_string()).exists());
    assert!(root.join(format!("{family}.tgfp")).exists());
}

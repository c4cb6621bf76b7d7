//! GPT-2's alphabet: every byte as one printable character, so that vocabularies are text.
//!
//! Printable Latin-1 bytes stand for themselves; the others take the characters from U+0100 on, in
//! ascending order.

/// The character of each byte.
pub(super) fn characters() -> [char; 256] {
    let mut next = 0x100..;
    std::array::from_fn(|byte| match byte as u8 {
        byte @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(byte),
        _ => next.next().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER),
    })
}

/// The bytes that a token's text spells; `None` for a text with characters outside the alphabet.
pub(super) fn spell(token: &str, characters: &[char; 256]) -> Option<Vec<u8>> {
    let byte = |character: char| match u32::from(character) {
        0x100.. => characters.iter().position(|&other| other == character).map(|at| at as u8),
        latin => Some(latin as u8).filter(|&byte| characters[usize::from(byte)] == character),
    };
    token.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own_that_spells_it() {
        let characters = characters();
        for byte in 0..=255u8 {
            let text = characters[usize::from(byte)].to_string();
            assert_eq!(spell(&text, &characters), Some(vec![byte]));
        }
        assert_eq!(characters[usize::from(b' ')], 'Ġ');
        assert_eq!(characters[usize::from(b'\n')], 'Ċ');
        assert_eq!(characters[0xad], 'Ń');
    }

    #[test]
    fn a_text_outside_the_alphabet_spells_nothing() {
        assert_eq!(spell("a b", &characters()), None);
        assert_eq!(spell("日", &characters()), None);
    }
}

//! Prompts that the built-in model knows: one byte is one token.

/// Verses, to be repeated with their number until a prompt is as long as wanted.
const VERSES: [&str; 4] = [
    "What light is this that breaks upon the east",
    "The crown sits heavy on an honest head",
    "Good morrow, cousin. Is the day so young",
    "I pray you, sir, what tidings from the court",
];

/// A prompt of exactly `bytes` ASCII bytes, whose blocks all differ.
#[must_use]
pub fn long(bytes: usize) -> String {
    let mut text: String = (0..)
        .map(verse)
        .scan(0, |length, verse| {
            let begins = *length < bytes;
            *length += verse.len();
            begins.then_some(verse)
        })
        .collect();
    text.truncate(bytes);
    text
}

/// The `n`th verse.
#[must_use]
pub fn verse(n: usize) -> String {
    format!("{n}. {}.\n", VERSES[n % VERSES.len()])
}

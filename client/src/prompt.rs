//! Where a prompt comes from: a flag, a file, or whatever is piped in.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::HumanCount;
use tinygpt_proto::MAX_MESSAGE_BYTES;
use tinygpt_proto::v1::{TokenIds, explain_request, sample_request, score_request, warm_request};

use crate::cli::heading;
use crate::failure::Failure;

/// The flags that give a prompt as text or as token ids; without any it is text from stdin.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::PROMPT)]
pub(crate) struct PromptArgs {
    #[command(flatten)]
    text: TextArgs,
    /// The prompt as token ids: 1,2,3 [default: none]
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        allow_negative_numbers = true,
        conflicts_with = "TextArgs"
    )]
    token_ids: Option<Vec<u32>>,
}

/// The flags that give text; without any it is read from stdin.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::PROMPT)]
#[group(multiple = false)]
pub(crate) struct TextArgs {
    /// The prompt itself [default: from stdin]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file with the prompt, taken byte for byte; - is stdin [default: -]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl PromptArgs {
    /// The prompt.
    pub(crate) fn read(self) -> Result<Prompt, Failure> {
        match self.token_ids {
            Some(ids) => Ok(Prompt::Ids(ids)),
            None => self.text.read("--prompt, --prompt-file or --token-ids").map(Prompt::Text),
        }
    }
}

impl TextArgs {
    /// The text. `flags` are those that would have given a prompt.
    pub(crate) fn read(self, flags: &str) -> Result<String, Failure> {
        match (self.prompt, self.prompt_file) {
            (Some(text), _) => Ok(text),
            (_, Some(path)) => read_text(&path),
            _ => read_piped(flags),
        }
    }
}

/// The whole text of stdin, unless a person would have to type it: `flags` give it better.
pub(crate) fn read_piped(flags: &str) -> Result<String, Failure> {
    match io::stdin().is_terminal() {
        true => Err(Failure::Usage(format!("no prompt: give {flags}, or pipe one in"))),
        false => read_text(Path::new("-")),
    }
}

/// The whole text of a file; `-` is stdin. Reading ends where no message could hold more, for some
/// files never end.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes =
        read_bytes(path).map_err(|source| Failure::Input { path: path.to_owned(), source })?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        let most = HumanCount(MAX_MESSAGE_BYTES as u64);
        return Err(Failure::Usage(format!("{} has more than {most} bytes", name(path))));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Usage(format!("{} is not UTF-8 at byte {at}", name(path)))
    })
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let too_many = MAX_MESSAGE_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    match path == Path::new("-") {
        true => io::stdin().lock().take(too_many).read_to_end(&mut bytes),
        false => File::open(path)?.take(too_many).read_to_end(&mut bytes),
    }?;
    Ok(bytes)
}

fn name(path: &Path) -> String {
    match path.to_str() {
        Some("-") => "stdin".into(),
        _ => path.display().to_string(),
    }
}

macro_rules! into_oneof {
    ($($oneof:path),*) => {$(
        impl From<Prompt> for $oneof {
            fn from(prompt: Prompt) -> Self {
                match prompt {
                    Prompt::Text(text) => Self::Text(text),
                    Prompt::Ids(ids) => Self::TokenIds(TokenIds { ids }),
                }
            }
        }
    )*};
}

into_oneof!(
    sample_request::Prompt,
    warm_request::Prompt,
    score_request::Input,
    explain_request::Prompt
);

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_taken_byte_for_byte() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "  two lines\n\n").unwrap();
        assert_eq!(read_text(file.path()).unwrap(), "  two lines\n\n");
    }

    #[test]
    fn a_file_that_never_ends_is_refused_with_the_number() {
        let error = read_text(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero has more than 67,108,864 bytes");
    }

    #[test]
    fn what_is_no_text_is_refused_with_the_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"abc\xff").unwrap();
        let error = read_text(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("is not UTF-8 at byte 3"), "{error}");
    }
}

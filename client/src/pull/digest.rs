//! The name of a file's content: what the hub lists, and what a blob in the cache is called.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// The name of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Digest {
    /// Of a file that git holds itself: the SHA-1 of its length and bytes, in hexadecimal.
    Git(String),
    /// Of a large file: the SHA-256 of its bytes, in hexadecimal.
    Sha256(String),
}

impl Digest {
    pub(super) fn git(text: &str) -> Option<Self> {
        is_hex(text, 40).then(|| Self::Git(text.into()))
    }

    pub(super) fn sha256(text: &str) -> Option<Self> {
        is_hex(text, 64).then(|| Self::Sha256(text.into()))
    }

    /// A safe name for a file.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Git(text) | Self::Sha256(text) => text,
        }
    }

    /// Begins to digest a file of `size` bytes in the same way.
    pub(super) fn start(&self, size: u64) -> Context {
        match self {
            Self::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                context
            }
            Self::Sha256(_) => Context::new(&SHA256),
        }
    }
}

/// Whether `text` is `length` lower-case hexadecimal digits.
pub(super) fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// What was digested, in hexadecimal.
pub(super) fn finish(context: Context) -> String {
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// What `git hash-object` and `sha256sum` say of the same bytes.
    #[test]
    fn a_digest_is_what_git_and_sha256sum_print() {
        let git = Digest::git("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        for digest in [git, Digest::sha256(sha).unwrap()] {
            let mut context = digest.start(6);
            context.update(b"hello\n");
            assert_eq!(finish(context), digest.as_str());
        }
    }

    #[test]
    fn what_is_no_digest_names_no_file() {
        assert_eq!(Digest::sha256(&"../".repeat(22)[..64]), None);
        assert_eq!(Digest::git("ce01"), None);
    }
}

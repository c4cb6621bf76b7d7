//! Names: what a block's bytes depend on, hashed.
//!
//! Two blocks with one key have the same bytes. A key therefore covers everything that the bytes
//! depend on: the tokens up to the block's end through the chain, and everything else through the
//! [`Fingerprint`]. Each hash has its own domain, and each field is tagged and length-prefixed,
//! so that no two inputs can be confused.

use std::fmt;

use super::layout::BLOCK;

/// The tokens of one block.
pub type BlockTokens = [u32; BLOCK];

/// A blake3 hash of one field of a [`Fingerprint`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Digest {
    /// The digest of `bytes` in the domain of `field`.
    pub fn of(field: &str, bytes: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tinygpt 1 field");
        absorb(&mut hasher, field, bytes);
        Self(*hasher.finalize().as_bytes())
    }

    /// The first eight bytes, as they stand in file names.
    pub fn short(&self) -> ShortKey {
        short(&self.0)
    }
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The name of one field of [`Fields`].
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[expect(missing_docs, reason = "documented at the fields of `Fields`")]
        #[expect(non_camel_case_types, reason = "one name for the field and its tag")]
        pub enum Field { $($name,)* }

        /// Everything except tokens that the bytes of a block depend on, a digest per field.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct Fields { $($(#[$doc])* pub $name: Digest,)* }

        impl Fields {
            /// All fields in the order of the fingerprint.
            pub const ALL: &[Field] = &[$(Field::$name,)*];

            /// The digest of one field.
            pub fn digest(&self, field: Field) -> Digest {
                match field { $(Field::$name => self.$name,)* }
            }

            /// Replaces the digest of one field.
            pub fn set(&mut self, field: Field, digest: Digest) {
                match field { $(Field::$name => self.$name = digest,)* }
            }
        }

        impl Field {
            /// The field's tag in the hash and in files.
            pub fn tag(self) -> &'static str {
                match self { $(Field::$name => stringify!($name),)* }
            }
        }
    };
}

fields! {
    /// The vocabulary and its merges. First, because a changed tokenizer inside a model file
    /// changes the file's contents as well.
    tokenizer,
    /// The contents of the model file.
    weights,
    /// Everything in the configuration that changes the maths.
    config,
    /// Adapter content and scale; empty without an adapter.
    adapter,
    /// The codec schedule (`kv_dtype`).
    codec,
    /// The arrangement of bytes inside a block.
    layout,
    /// The reference arithmetic.
    numerics,
    /// What a query may see.
    window,
    /// The choice of rotary factors.
    rope,
    /// Who may reuse it: the peer's identity.
    identity,
    /// The identity's own sub-namespace.
    namespace,
}

impl Fields {
    /// The first field in which `other` differs.
    pub fn first_difference(&self, other: &Self) -> Option<Field> {
        Self::ALL.iter().copied().find(|field| self.digest(*field) != other.digest(*field))
    }

    /// The fingerprint over all fields.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new_derive_key("tinygpt 1 fingerprint");
        for field in Self::ALL {
            absorb(&mut hasher, field.tag(), &self.digest(*field).0);
        }
        Fingerprint(*hasher.finalize().as_bytes())
    }
}

/// Names everything except tokens that the bytes of a chain depend on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

/// Names one block: its fingerprint, its tokens and all tokens before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub [u8; 32]);

impl BlockKey {
    /// The parent of every first block under `fingerprint`.
    pub fn root(fingerprint: &Fingerprint) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tinygpt 1 chain root");
        hasher.update(&fingerprint.0);
        Self(*hasher.finalize().as_bytes())
    }

    /// The key of the block with `tokens` after the block `self`.
    pub fn child(&self, fingerprint: &Fingerprint, tokens: &BlockTokens) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tinygpt 1 block");
        hasher.update(&fingerprint.0).update(&self.0).update(&token_bytes(tokens));
        Self(*hasher.finalize().as_bytes())
    }

    /// The first eight bytes, as they stand in file names.
    pub fn short(&self) -> ShortKey {
        short(&self.0)
    }
}

/// The keys of all whole blocks of `tokens`, in order.
pub fn chain(fingerprint: &Fingerprint, tokens: &[u32]) -> Vec<BlockKey> {
    let (blocks, _) = tokens.as_chunks::<BLOCK>();
    let mut parent = BlockKey::root(fingerprint);
    let step = |block| {
        parent = parent.child(fingerprint, block);
        parent
    };
    blocks.iter().map(step).collect()
}

/// How many leading tokens two prompts have in common.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Names a whole prompt: its last block and the ids that fill no block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey(pub [u8; 32]);

impl RecordKey {
    /// The key of the chain that ends with block `last` (the root for none) and `tail` after it.
    pub fn new(fingerprint: &Fingerprint, last: &BlockKey, tail: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tinygpt 1 record");
        hasher.update(&fingerprint.0).update(&last.0).update(&token_bytes(tail));
        Self(*hasher.finalize().as_bytes())
    }

    /// The first eight bytes, as they stand in file names.
    pub fn short(&self) -> ShortKey {
        short(&self.0)
    }
}

/// The end of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The last whole block; the chain's root when there is none.
    pub last: BlockKey,
    /// The ids after it, at most 31.
    pub tail: Vec<u32>,
}

impl End {
    /// Where the chain of `tokens` ends.
    pub fn of(fingerprint: &Fingerprint, tokens: &[u32]) -> Self {
        let keys = chain(fingerprint, tokens);
        let last = keys.last().copied().unwrap_or_else(|| BlockKey::root(fingerprint));
        Self { last, tail: tokens[keys.len() * BLOCK..].to_vec() }
    }

    /// The name of the record that it has, or would have.
    pub fn key(&self, fingerprint: &Fingerprint) -> RecordKey {
        RecordKey::new(fingerprint, &self.last, &self.tail)
    }
}

/// The first eight bytes of a key: enough to look for a file, never enough to trust it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShortKey(pub u64);

impl fmt::Display for ShortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

fn short(key: &[u8; 32]) -> ShortKey {
    let (head, _) = key.split_first_chunk().expect("a key has 32 bytes");
    ShortKey(u64::from_be_bytes(*head))
}

impl Fingerprint {
    /// The first eight bytes, as they stand in directory names.
    pub fn short(&self) -> ShortKey {
        short(&self.0)
    }
}

macro_rules! hex_names {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Digest(self.0).fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.short())
            }
        }
    )*};
}

hex_names!(Fingerprint, BlockKey, RecordKey);

impl fmt::Debug for ShortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

fn absorb(hasher: &mut blake3::Hasher, tag: &str, bytes: &[u8]) {
    for part in [tag.as_bytes(), bytes] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        let mut fields = Fields::default();
        for field in Fields::ALL {
            fields.set(*field, Digest::of(field.tag(), b"value"));
        }
        fields
    }

    #[test]
    fn every_field_changes_the_fingerprint_and_is_named_as_the_difference() {
        for field in Fields::ALL {
            let mut other = fields();
            other.set(*field, Digest::of(field.tag(), b"other"));
            assert_ne!(fields().fingerprint(), other.fingerprint(), "{field:?}");
            assert_eq!(fields().first_difference(&other), Some(*field));
        }
    }

    #[test]
    fn a_key_depends_on_every_token_before_its_end_and_on_none_after() {
        let fingerprint = fields().fingerprint();
        let tokens: Vec<u32> = (0..100).collect();
        let keys = chain(&fingerprint, &tokens);
        assert_eq!(keys.len(), 3);
        for changed in 0..100 {
            let mut other = tokens.clone();
            other[changed] += 1;
            for (block, key) in chain(&fingerprint, &other).iter().enumerate() {
                assert_eq!(*key == keys[block], (block + 1) * BLOCK <= changed);
            }
        }
    }

    #[test]
    fn a_record_key_is_not_the_key_of_another_split_of_the_same_tokens() {
        let fingerprint = fields().fingerprint();
        let root = BlockKey::root(&fingerprint);
        assert_ne!(
            RecordKey::new(&fingerprint, &root, &[1, 2]),
            RecordKey::new(&fingerprint, &root, &[1])
        );
    }
}

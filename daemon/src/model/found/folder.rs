//! What is in a folder, and what the names say of it.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::last;

/// A folder's entries in the order of their names, but for hidden ones.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) files: Vec<Entry>,
    pub(super) folders: Vec<Entry>,
    /// Names that were read, hidden ones too.
    pub(super) names: usize,
    /// Whether there is more in it than was wanted.
    pub(super) cut: bool,
}

/// Where reading ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) names: usize,
    pub(super) until: Instant,
}

/// Something in a folder.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// What the name of a file says of it.
#[derive(Debug, PartialEq)]
pub(super) enum Role {
    /// It is a model by itself.
    Model,
    /// It is one of the parts of the model that begins with these words.
    Part(String),
    /// It is an adapter.
    Adapter,
    /// It is to become a model.
    Incomplete,
}

impl Folder {
    /// Reads it up to a limit.
    pub(super) fn read(path: &Path, limit: Limit) -> io::Result<Self> {
        let (path, files, folders) = (path.to_owned(), Vec::new(), Vec::new());
        let mut folder = Self { path, files, folders, names: 0, cut: false };
        for entry in fs::read_dir(&folder.path)? {
            folder.cut = folder.names == limit.names || Instant::now() > limit.until;
            if folder.cut {
                break;
            }
            folder.names += 1;
            folder.take(&entry?);
        }
        folder.files.sort_unstable();
        folder.folders.sort_unstable();
        Ok(folder)
    }

    fn take(&mut self, entry: &DirEntry) {
        let path = entry.path();
        let entry = Entry { name: last(&path), path };
        if entry.name.starts_with('.') {
            return;
        }
        // A link that leads nowhere counts as the file that it should lead to.
        match entry.path.is_dir() {
            true => self.folders.push(entry),
            false => self.files.push(entry),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.name == name)
    }

    pub(super) fn folder(&self, name: &str) -> Option<&Entry> {
        self.folders.iter().find(|folder| folder.name == name)
    }

    /// Whether it is a model: one whose weights are in GGUF files may have a `config.json`, too.
    pub(super) fn is_model(&self) -> bool {
        let ends = |end| self.files.iter().any(|file| file.name.ends_with(end));
        ends(".safetensors")
            || ends(".safetensors.index.json")
            || self.has("config.json") && !ends(".gguf")
    }

    /// Whether it is an adapter, as PEFT saves one.
    pub(super) fn is_adapter(&self) -> bool {
        self.has("adapter_config.json") && !self.has("config.json")
    }
}

impl Role {
    /// The role of the file called `name`, if it has one.
    pub(super) fn of(name: &str) -> Option<Self> {
        let model = |name: &str| name.ends_with(".gguf") || name.ends_with(".tinygpt");
        let begun = [".part", ".incomplete", ".download"];
        let begun = begun.iter().find_map(|end| name.strip_suffix(end));
        match name {
            _ if begun.is_some_and(|name| model(name) || name.ends_with(".safetensors")) => {
                Some(Self::Incomplete)
            }
            _ if model(name) => Some(part(name).map_or(Self::Model, |of| Self::Part(of.into()))),
            _ if name.ends_with(".lora") => Some(Self::Adapter),
            _ => None,
        }
    }
}

/// `NAME` of `NAME-00001-of-00003.gguf`.
fn part(name: &str) -> Option<&str> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
    (number(part) && number(count)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_models_parts_adapters_and_what_is_not_complete() {
        let cases = [
            ("a.gguf", Some(Role::Model)),
            ("a.tinygpt", Some(Role::Model)),
            ("a-00002-of-00003.gguf", Some(Role::Part("a".into()))),
            ("a-2-of-3.gguf", Some(Role::Model)),
            ("-of-.gguf", Some(Role::Model)),
            ("a.lora", Some(Role::Adapter)),
            ("a.gguf.part", Some(Role::Incomplete)),
            ("a.safetensors.incomplete", Some(Role::Incomplete)),
            ("a.safetensors", None),
            ("README.md.part", None),
        ];
        for (name, role) in cases {
            assert_eq!(Role::of(name), role, "{name}");
        }
    }
}

//! A model file as its readers see it: bytes at places, read when they are asked for.
//!
//! Nothing is mapped. Whoever retrains in place cuts the file first, and that would end a process
//! that has it mapped; a read that comes too late gives an error with its place.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::LoadError;

/// Bytes of the beginning of a file that are read at first, in the hope that its head is no
/// longer.
const HEAD: usize = 4 << 20;

/// Longest head that is read: no vocabulary comes near it.
pub(super) const LONGEST_HEAD: usize = 1 << 30;

/// Where the bytes of a model come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input<'a> {
    /// They are in memory.
    Memory(&'a [u8]),
    /// They are in a file, which had this many when it was opened.
    File(&'a File, usize),
}

impl<'a> Input<'a> {
    /// The bytes that `file` has now. Only of a regular file is it known how many.
    pub(super) fn file(file: &'a File) -> Result<Self, LoadError> {
        let unread = |error: io::Error| unread(0, 0, &error);
        let metadata = file.metadata().map_err(unread)?;
        if !metadata.is_file() {
            return Err(LoadError::NotAFile);
        }
        let length = usize::try_from(metadata.len()).map_err(io::Error::other);
        Ok(Self::File(file, length.map_err(unread)?))
    }

    /// How many bytes there are.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(_, length) => length,
        }
    }

    /// The bytes of `range`.
    pub(super) fn read(self, range: Range<usize>) -> Result<Cow<'a, [u8]>, LoadError> {
        let (at, need) = (range.start, range.len());
        match self {
            Self::Memory(bytes) => {
                let cut = LoadError::Cut { at, need, have: bytes.len() as u64 };
                bytes.get(range).map(Cow::Borrowed).ok_or(cut)
            }
            Self::File(file, _) => {
                let mut bytes = vec![0; need];
                let read = file.read_exact_at(&mut bytes, at as u64);
                read.map_err(|error| failure(file, at, need, &error))?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// What `parse` makes of the beginning of the file, given more of it until it is enough.
    pub(super) fn with_head<T>(
        self,
        parse: impl Fn(&[u8]) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let mut size = HEAD;
        loop {
            match parse(&self.read(0..size.min(self.len()))?) {
                Err(LoadError::LongHead { need }) if need <= LONGEST_HEAD => {
                    size = need.max(2 * size).min(LONGEST_HEAD);
                }
                parsed => return parsed,
            }
        }
    }
}

fn failure(file: &File, at: usize, need: usize, error: &io::Error) -> LoadError {
    match (error.kind(), file.metadata()) {
        (io::ErrorKind::UnexpectedEof, Ok(now)) => LoadError::Cut { at, need, have: now.len() },
        _ => unread(at, need, error),
    }
}

fn unread(at: usize, need: usize, error: &io::Error) -> LoadError {
    LoadError::Read { at, need, reason: error.to_string() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn a_file_gives_the_bytes_that_memory_gives() {
        let bytes: Vec<u8> = (0..=255).collect();
        let file = file(&bytes);
        for range in [0..0, 0..256, 7..8, 200..256] {
            let expected = Input::Memory(&bytes).read(range.clone()).unwrap();
            assert_eq!(Input::file(&file).unwrap().read(range).unwrap(), expected);
        }
    }

    #[test]
    fn a_file_that_is_cut_short_is_an_error_with_its_numbers() {
        let file = file(&[0; 100]);
        let input = Input::file(&file).unwrap();
        file.set_len(30).unwrap();
        assert_eq!((input.len(), input.read(0..30).unwrap().len()), (100, 30));
        let error = input.read(20..60).unwrap_err();
        assert_eq!(error, LoadError::Cut { at: 20, need: 40, have: 30 });
    }

    #[test]
    fn a_long_head_is_read_again_until_it_is_whole_or_too_long() {
        let file = file(&[]);
        file.set_len(100 << 20).unwrap();
        let input = Input::file(&file).unwrap();
        let long = 40 << 20;
        let read = input.with_head(|head| match head.len() {
            length if length < long => Err(LoadError::LongHead { need: length + 1 }),
            length => Ok(length),
        });
        assert!(read.is_ok_and(|length| (long..=2 * long).contains(&length)));
        let endless = LoadError::LongHead { need: LONGEST_HEAD + 1 };
        assert_eq!(input.with_head(|_| Err::<(), _>(endless.clone())).unwrap_err(), endless);
    }
}

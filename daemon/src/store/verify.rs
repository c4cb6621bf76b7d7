//! Reading everything again, byte for byte.
use crate::sys::file;

use std::fs;
use std::path::{Path, PathBuf};

use super::catalogue::FileId;
use super::contents::expect_name;
use super::damage::Fault;
use super::loader::{open, verified};
use super::name::Name;
use super::shared::Shared;
use super::{fields, record};

/// What reading everything found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Files that were read.
    pub files: u64,
    /// Sound segments.
    pub segments: u64,
    /// Sound records.
    pub records: u64,
    /// Bytes of sound files.
    pub bytes: u64,
    /// Files that are not there any more.
    pub gone: u64,
    /// Files that are damaged or unreadable, and what is wrong with each.
    pub bad: Vec<(PathBuf, String)>,
}

impl Shared {
    /// Reads every file and compares every checksum. Blocks for as long as that takes. What lies
    /// in a directory that is not the locked one is not looked at.
    pub(super) fn verify(&self, repair: bool) -> Verified {
        let mut report = Verified::default();
        if self.expect_home().is_err() {
            return report;
        }
        let ids: Vec<_> = self.catalogue().entries().map(|(id, _)| id).collect();
        for id in ids {
            // It may have been evicted meanwhile.
            let Some((_, name, path)) = self.locate(id) else { continue };
            let checked = check(&path, name);
            match (&checked, name) {
                (Ok(_), Name::Segment { .. }) => report.segments += 1,
                (Ok(_), Name::Record { .. }) => report.records += 1,
                (Err(_), _) => {}
            }
            self.enter_result(&mut report, id, path, checked, repair);
        }
        self.verify_fields(&mut report, repair);
        report
    }

    fn enter_result(
        &self,
        report: &mut Verified,
        id: FileId,
        path: PathBuf,
        checked: Result<u64, Fault>,
        repair: bool,
    ) {
        match checked {
            Ok(bytes) => report.bytes += bytes,
            Err(Fault::Gone) => return self.enter_gone(report, id, &path),
            Err(fault) => {
                report.bad.push((path, fault.to_string()));
                if repair {
                    self.report(id, &fault);
                }
            }
        }
        report.files += 1;
    }

    /// Forgets a file that is not there, unless it left by the store's own doing meanwhile, or
    /// may come back with its directory.
    fn enter_gone(&self, report: &mut Verified, id: FileId, path: &Path) {
        if self.expect_home().is_ok() && self.locate(id).is_some() {
            tracing::warn!(path = %path.display(), "a cache file is not there any more");
            report.gone += 1;
            self.report(id, &Fault::Gone);
        }
    }

    fn verify_fields(&self, report: &mut Verified, repair: bool) {
        let families = self.catalogue().digested();
        for family in families {
            let path = self.fields_path(family);
            let Ok(bytes) = fs::read(&path) else { continue };
            report.files += 1;
            report.bytes += bytes.len() as u64;
            let Err(damage) = fields::decode(&bytes) else { continue };
            report.bad.push((path, damage.to_string()));
            if repair {
                self.drop_fields(family);
            }
        }
    }
}

fn check(path: &Path, name: Name) -> Result<u64, Fault> {
    let file = file::open(path)?;
    match name {
        Name::Segment { .. } => {
            let mapping = open(&file)?;
            expect_name(name, mapping.header.name())?;
            (0..mapping.header.blocks.len()).try_for_each(|i| verified(&mapping, i).map(drop))?;
        }
        Name::Record { .. } => expect_name(name, record::read(&file)?.0.name())?,
    }
    Ok(file.metadata()?.len())
}

//! Which hub, with which token, into which folder: what Hugging Face's own tools read from the
//! environment, in their order.

use std::env;
use std::ffi::OsString;
use std::path::{self, PathBuf};

use etcetera::home_dir;

/// Where models come from when nobody says otherwise.
const HUB: &str = "https://huggingface.co";

/// Where models come from and go to.
#[derive(Debug, PartialEq)]
pub(super) struct Surroundings {
    /// The hub, without a slash at its end.
    pub(super) endpoint: String,
    pub(super) token: Option<String>,
    /// The folder with one folder for each repository; absolute.
    pub(super) cache: PathBuf,
}

impl Surroundings {
    pub(super) fn read() -> Self {
        Self::of(&|name| env::var_os(name), home_dir().unwrap_or_default())
    }

    fn of(variable: &dyn Fn(&str) -> Option<OsString>, user: PathBuf) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let folder = |name: &str| set(name).map(PathBuf::from);
        let text = |name: &str| Some(set(name)?.to_str()?.trim().to_owned());
        let caches = folder("XDG_CACHE_HOME").unwrap_or_else(|| user.join(".cache"));
        let home = folder("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
        let cache = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.unwrap_or_else(|| home.join("hub"));
        let token = folder("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let kept = || Some(std::fs::read_to_string(token).ok()?.trim().to_owned());
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).or_else(kept);
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| HUB.into());
        Self {
            endpoint: endpoint.trim_end_matches('/').into(),
            token: token.filter(|token| !token.is_empty()),
            cache: path::absolute(&cache).unwrap_or(cache),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use super::*;

    fn surroundings(set: &[(&str, &str)]) -> Surroundings {
        let find = |name: &str| set.iter().find(|(key, _)| *key == name);
        Surroundings::of(&|name| find(name).map(|(_, value)| value.into()), "/home/u".into())
    }

    #[test]
    fn the_cache_is_where_other_tools_have_it() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[], "/home/u/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")], "/h/hub"),
            (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HF_HOME", ""), ("HF_HUB_CACHE", "")], "/home/u/.cache/huggingface/hub"),
        ];
        for (set, expected) in cases {
            assert_eq!(surroundings(set).cache, PathBuf::from(expected), "{set:?}");
        }
    }

    #[test]
    fn a_token_that_is_set_goes_before_one_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        let other = folder.path().join("other");
        fs::write(folder.path().join("token"), "kept\n").unwrap();
        fs::write(&other, "other\n").unwrap();
        let token = |set: &[(&str, &str)]| surroundings(set).token;
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", " set ")]).as_deref(), Some("set"));
        assert_eq!(token(&[("HF_HOME", home)]).as_deref(), Some("kept"));
        let path = ("HF_TOKEN_PATH", other.to_str().unwrap());
        assert_eq!(token(&[("HF_HOME", home), path]).as_deref(), Some("other"));
        assert_eq!(token(&[("HF_HOME", "/nowhere")]), None);
    }

    #[test]
    fn a_hub_of_ones_own_is_named_with_or_without_a_slash() {
        assert_eq!(surroundings(&[]).endpoint, HUB);
        assert_eq!(surroundings(&[("HF_ENDPOINT", "http://h:1/")]).endpoint, "http://h:1");
    }
}

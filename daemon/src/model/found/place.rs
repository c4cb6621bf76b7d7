//! Where models may lie: folders that the user named, and those of programs that fetch models.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use etcetera::home_dir;

/// Where Ollama's own user keeps models when it runs as a service of a Linux system.
const OLLAMA_SERVICE: &str = "/usr/share/ollama/.ollama/models";

/// Whose folder it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The user named it.
    Configured,
    /// The cache that Hugging Face's tools share, and `tinygpt-client pull`.
    HuggingFace,
    /// LM Studio's.
    LmStudio,
    /// Ollama's.
    Ollama,
}

/// A folder that may hold models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) kind: Kind,
    pub(super) path: PathBuf,
}

/// The folders to look into, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places(Vec<Place>);

impl Places {
    /// The `configured` folders, then those that the programs of this user have by this process's
    /// environment.
    pub fn new(configured: Vec<PathBuf>) -> Self {
        Self::of(configured, &|name| env::var_os(name), home_dir().ok())
    }

    fn of(
        configured: Vec<PathBuf>,
        variable: &dyn Fn(&str) -> Option<OsString>,
        user: Option<PathBuf>,
    ) -> Self {
        let set = |name: &str| Some(PathBuf::from(variable(name)?)).filter(|p| p.is_absolute());
        let user = user.filter(|user| user.is_absolute());
        let of_user = |path: &str| Some(user.as_ref()?.join(path));
        let caches = set("XDG_CACHE_HOME").or_else(|| of_user(".cache"));
        let hub = set("HF_HOME").or_else(|| Some(caches?.join("huggingface")));
        let hub = set("HF_HUB_CACHE")
            .or_else(|| set("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(hub?.join("hub")));
        let ollama = set("OLLAMA_MODELS").or_else(|| of_user(".ollama/models"));
        let known = [
            (Kind::HuggingFace, hub),
            (Kind::LmStudio, of_user(".lmstudio/models")),
            (Kind::LmStudio, of_user(".cache/lm-studio/models")),
            (Kind::Ollama, ollama),
            (Kind::Ollama, Some(OLLAMA_SERVICE.into())),
        ];
        let known = known.into_iter().filter_map(|(kind, path)| Some(Place { kind, path: path? }));
        let configured = configured.into_iter();
        let configured = configured.map(|path| Place { kind: Kind::Configured, path });
        Self(configured.chain(known).collect())
    }

    pub(super) fn all(&self) -> &[Place] {
        &self.0
    }

    /// Those that the user named.
    pub fn configured(&self) -> impl Iterator<Item = &PathBuf> {
        self.0.iter().filter(|place| place.kind == Kind::Configured).map(|place| &place.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(set: &[(&str, &str)]) -> Vec<String> {
        let find = |name: &str| set.iter().find(|(key, _)| *key == name);
        let variable = |name: &str| find(name).map(|(_, value)| value.into());
        let places = Places::of(vec!["/m".into()], &variable, Some("/home/u".into()));
        places.0.iter().map(|place| place.path.display().to_string()).collect()
    }

    #[test]
    fn each_program_has_its_own_folder_unless_its_variable_says_otherwise() {
        let usual = [
            "/m",
            "/home/u/.cache/huggingface/hub",
            "/home/u/.lmstudio/models",
            "/home/u/.cache/lm-studio/models",
            "/home/u/.ollama/models",
            OLLAMA_SERVICE,
        ];
        assert_eq!(paths(&[]), usual);
        let odd = [("HF_HUB_CACHE", ""), ("OLLAMA_MODELS", "here"), ("HF_HOME", "here")];
        assert_eq!(paths(&odd), usual, "empty and relative ones count as unset");
        let hub = |set: &[(&str, &str)]| paths(set)[1].clone();
        assert_eq!(hub(&[("XDG_CACHE_HOME", "/x")]), "/x/huggingface/hub");
        assert_eq!(hub(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")]), "/h/hub");
        assert_eq!(hub(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")]), "/c");
        assert_eq!(paths(&[("OLLAMA_MODELS", "/o")])[4], "/o");
    }

    #[test]
    fn without_a_home_only_what_is_named_is_looked_into() {
        let places = Places::of(vec!["/m".into()], &|_| None, None);
        assert_eq!(places.configured().collect::<Vec<_>>(), [&PathBuf::from("/m")]);
        assert_eq!(places.all().len(), 2);
    }
}

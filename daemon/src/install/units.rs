//! The templates under `launchd/`, filled in.
//!
//! Each format quotes in its own way, and paths hold spaces ("Application Support"), so every value is escaped for where it goes.

use std::path::Path;

const PLIST: &str = include_str!("../../../launchd/com.tinygpt.daemon.plist");
const SOCKET: &str = include_str!("../../../launchd/systemd/tinygptd.socket");
const SERVICE: &str = include_str!("../../../launchd/systemd/tinygptd.service");

/// The launch agent that runs `command` (program, then arguments) with sockets at `socket` and its log at `log`.
pub(super) fn plist(command: &[String], socket: &Path, log: &Path) -> String {
    let words = command.iter().map(|word| format!("<string>{}</string>", xml(word)));
    let (guide, body) = PLIST.split_at(PLIST.find("<plist").unwrap_or(0));
    let body = body
        .replace("@COMMAND@", &words.collect::<Vec<_>>().join("\n        "))
        .replace("@SOCKET@", &xml(&socket.to_string_lossy()))
        .replace("@LOG@", &xml(&log.to_string_lossy()));
    format!("{guide}{body}")
}

/// The unit that listens on `socket`.
pub(super) fn socket(socket: &Path) -> String {
    fill(SOCKET, "@SOCKET@", &socket.to_string_lossy().replace('%', "%%"))
}

/// The unit that runs `command`.
pub(super) fn service(command: &[String]) -> String {
    let words: Vec<_> = command.iter().map(|word| systemd_word(word)).collect();
    fill(SERVICE, "@COMMAND@", &words.join(" "))
}

/// Replaces `token` where it is a value, not where the header explains it.
fn fill(template: &str, token: &str, value: &str) -> String {
    template.replace(&format!("={token}\n"), &format!("={value}\n"))
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// One word of `ExecStart`: quoted, with `%` and `$` standing for themselves.
fn systemd_word(word: &str) -> String {
    let escaped =
        word.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    format!("\"{escaped}\"")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;
    use std::process::Command;

    use serde::Deserialize;
    use tinygpt_proto::socket::MAX_PATH_BYTES;

    use super::*;

    /// Every key that we use, with launchd's type for it; launchd itself ignores what it does not know, silently.
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase", deny_unknown_fields)]
    struct Agent {
        label: String,
        program_arguments: Vec<String>,
        sockets: Sockets,
        run_at_load: bool,
        keep_alive: KeepAlive,
        throttle_interval: u32,
        exit_time_out: u32,
        process_type: String,
        umask: u32,
        standard_error_path: String,
        soft_resource_limits: Limits,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase", deny_unknown_fields)]
    struct Sockets {
        listener: Listener,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase", deny_unknown_fields)]
    struct Listener {
        sock_family: String,
        sock_type: String,
        sock_path_name: String,
        sock_path_mode: u32,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase", deny_unknown_fields)]
    struct KeepAlive {
        crashed: bool,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase", deny_unknown_fields)]
    struct Limits {
        number_of_files: u32,
    }

    const NASTY: &str = r#"/a b/<&>"'%h $HOME\n"#;

    fn agent(text: &str) -> Agent {
        plist::from_bytes(text.as_bytes()).unwrap()
    }

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn the_agent_means_what_launchd_needs() {
        let socket = Path::new("/Users/a/Library/Application Support/tinygpt/tinygptd.sock");
        let text = super::plist(&command(&["/bin/tinygptd"]), socket, Path::new("/l/d.log"));
        let agent = agent(&text);
        assert_eq!(agent.label, super::super::LABEL);
        assert_eq!(agent.program_arguments, ["/bin/tinygptd"]);
        let listener = agent.sockets.listener;
        assert_eq!((&*listener.sock_family, &*listener.sock_type), ("Unix", "stream"));
        assert_eq!(Path::new(&listener.sock_path_name), socket);
        assert_eq!(listener.sock_path_mode, 0o600);
        assert_eq!(agent.umask, 0o077);
        assert_eq!(agent.standard_error_path, "/l/d.log");
        assert_eq!(agent.process_type, "Interactive");
        assert!(
            !agent.run_at_load && agent.keep_alive.crashed,
            "starts on demand or after a crash"
        );
        assert!(agent.throttle_interval >= 10 && agent.exit_time_out >= 10);
        assert!(agent.soft_resource_limits.number_of_files >= 4096);
    }

    #[test]
    fn words_survive_the_property_list_whatever_they_hold() {
        let words = command(&[NASTY, "--model", NASTY]);
        let agent = agent(&super::plist(&words, Path::new(NASTY), Path::new(NASTY)));
        assert_eq!(agent.program_arguments, words);
        assert_eq!(agent.sockets.listener.sock_path_name, NASTY);
    }

    #[test]
    fn the_guide_in_the_agent_is_legal_xml_and_stays_as_it_is() {
        let text = super::plist(&command(&["/bin/tinygptd"]), Path::new("/s"), Path::new("/l"));
        let comment = text.split("<!--").nth(1).unwrap().split("-->").next().unwrap();
        assert!(!comment.contains("--"), "XML forbids two hyphens inside a comment");
        assert!(comment.contains("launchctl bootstrap") && comment.contains("@SOCKET@"));
        let limit = MAX_PATH_BYTES.min(103);
        assert!(comment.contains(&format!("at most {limit} bytes")));
    }

    #[test]
    fn systemd_words_keep_spaces_quotes_and_dollars() {
        assert_eq!(systemd_word(r#"a "b" 5% $x \"#), r#""a \"b\" 5%% $$x \\""#);
    }

    #[test]
    fn systemd_accepts_the_units() {
        let dir = tempfile::tempdir().unwrap();
        let executable = std::env::current_exe().unwrap();
        let words = command(&[&executable.to_string_lossy(), "--model", NASTY]);
        let (socket, service) =
            (dir.path().join("tinygptd.socket"), dir.path().join("tinygptd.service"));
        fs::write(&socket, super::socket(Path::new("/run/a b/tinygptd.sock"))).unwrap();
        fs::write(&service, super::service(&words)).unwrap();
        let verify = Command::new("systemd-analyze")
            .args(["verify", "--user", "--man=no"])
            .args([&socket, &service])
            .env("XDG_RUNTIME_DIR", dir.path())
            .output();
        let Ok(output) = verify else {
            return eprintln!("skipped: systemd-analyze is not installed");
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.trim().is_empty(), "{said}");
    }

    #[test]
    fn no_unit_keeps_a_blank_to_fill_in() {
        let units = [super::socket(Path::new("/s")), super::service(&command(&["/bin/tinygptd"]))];
        for unit in units {
            let values = unit.lines().filter(|line| !line.starts_with('#'));
            assert!(values.into_iter().all(|line| !line.contains('@')), "{unit}");
        }
    }
}

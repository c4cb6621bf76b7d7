//! Words for a client and a daemon of different versions.

/// What to say about a daemon of version `theirs`; nothing when it is this client's own.
pub(crate) fn difference(theirs: &str) -> Option<String> {
    let ours = env!("CARGO_PKG_VERSION");
    (theirs != ours).then(|| {
        format!(
            "warning: the daemon is version {theirs}, this client is {ours}: restart the daemon \
             (`tinygptd`), or use the client that came with it"
        )
    })
}

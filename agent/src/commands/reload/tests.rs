use std::fs;
use std::path::Path;

use super::*;
use crate::commands::flags::file_text;
use crate::config::Config;
use crate::node::NodeInfo;
use crate::sinks::sampling::{Policy, Sampling};
use crate::sinks::store::StoreOptions;
use crate::view::Store;

/// A file, what follows it, and the parts that it changes.
struct Rig {
    /// Of the file; it is removed with this.
    _folder: tempfile::TempDir,
    reload: Reload,
    sampling: Sampling,
    store: Store,
}

impl Rig {
    fn new(text: &str) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        fs::write(&path, text).unwrap();
        let args = ConfigArgs {
            config: Some(path),
            ..ConfigArgs::default()
        };
        let text = file_text(&args).unwrap();
        let (layers, config) = configuration_of(&args, text.as_deref()).unwrap();
        let sampling = Sampling::new(Policy::All);
        let store = Store::new(StoreOptions::live(config.store.max_traces), NodeInfo::default());
        let settings = LiveSettings::of(Some(sampling.clone()), store.clone(), None);
        let state = ConfigState::default();
        started(&layers, &state);
        Rig {
            reload: Reload::new(args, layers, text, settings, state).unwrap(),
            _folder: folder,
            sampling,
            store,
        }
    }

    fn path(&self) -> &Path {
        &self.reload.path
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    /// Looks twice, as often as a change needs.
    fn settle(&mut self) {
        assert!(!self.reload.look(false), "it changed");
        assert!(self.reload.look(false), "it is the same again");
    }

    fn refused(&self) -> Option<String> {
        self.reload.state.report().unwrap().refused
    }

    fn needs_restart(&self) -> Vec<String> {
        self.reload.state.report().unwrap().needs_restart
    }
}

#[test]
fn live_keys_take_effect_and_others_are_named() {
    let mut rig = Rig::new("store:\n  max_traces: 7\n");
    let before = rig.reload.state.report().unwrap();
    assert!(rig.reload.look(false));
    assert_eq!(rig.reload.state.report().unwrap(), before, "nothing changed");
    rig.write("store:\n  max_traces: 5\notlp:\n  sampling: bad\n  slow_ms: 250\nhttp:\n  hosts: [a]\n");
    rig.settle();
    assert_eq!(rig.store.size().max_traces, 5);
    let policy = Policy::Bad {
        good_per_thousand: 10,
        slow_ns: 250_000_000,
    };
    assert_eq!(
        (rig.sampling.policy(), rig.needs_restart()),
        (policy, vec!["http.hosts".to_owned()])
    );
    assert_ne!(rig.reload.state.report().unwrap().hash, before.hash);
    // A key that is as at the start needs no restart any more.
    rig.write("store:\n  max_traces: 7\n# as it was\n");
    rig.settle();
    assert_eq!((rig.sampling.policy(), rig.needs_restart()), (Policy::All, Vec::new()));
    assert_eq!(
        rig.reload.state.report().unwrap().hash,
        before.hash,
        "comments are no values"
    );
}

#[test]
fn a_secret_that_changed_is_named_and_not_hashed() {
    let mut rig = Rig::new("otlp:\n  headers: {token: one}\n");
    let before = rig.reload.state.report().unwrap();
    rig.write("otlp:\n  headers: {token: two}\n");
    rig.settle();
    assert_eq!(rig.needs_restart(), ["otlp.headers"]);
    assert_eq!(rig.reload.state.report().unwrap().hash, before.hash);
}

#[test]
fn a_bad_file_is_refused_as_a_whole() {
    let mut rig = Rig::new("store:\n  max_traces: 7\n");
    let before = rig.reload.state.report().unwrap();
    for (text, part, hint) in [
        ("store:\n  max_tracs: 5\n", "store.max_tracs", "did you mean"),
        ("store:\n  max_traces: 5\nhttp: [\n", "not valid", "print-config"),
        (
            "store:\n  max_traces: 5\notlp:\n  sampling: some\n",
            "no policy",
            "write all, or bad",
        ),
        ("store:\n  max_traces: 5\notlp:\n  slow_ms: 0\n", "slow_ms", "default"),
        (
            "store:\n  max_traces: 5\ncri:\n  endpoint: ftp://x\n",
            "cri.endpoint",
            "unix://",
        ),
        (
            "store:\n  max_traces: 5\ncorrelation:\n  settle: 1h\n",
            "correlation",
            "print-config",
        ),
    ] {
        rig.write(text);
        rig.settle();
        let refused = rig.refused().unwrap_or_default();
        assert!(refused.contains(part) && refused.contains(hint), "{text}: {refused}");
        assert_eq!(rig.store.size().max_traces, 7, "{text}");
    }
    fs::remove_file(rig.path()).unwrap();
    rig.settle();
    assert!(rig.refused().unwrap().contains("cannot read configuration"));
    // A folder stands for all that is no file.
    fs::create_dir(rig.path()).unwrap();
    rig.settle();
    assert!(rig.refused().unwrap().contains("no file"), "{:?}", rig.refused());
    fs::remove_dir(rig.path()).unwrap();
    rig.write("store:\n  max_traces: 7\n");
    rig.settle();
    let after = rig.reload.state.report().unwrap();
    assert_eq!((after.refused, after.hash), (None, before.hash));
}

#[test]
fn half_a_file_is_waited_for_and_a_request_is_not() {
    let mut rig = Rig::new("store:\n  max_traces: 7\n");
    rig.write("store:\n");
    assert!(!rig.reload.look(false));
    rig.write("store:\n  max_traces: 9\n");
    assert!(!rig.reload.look(false), "changed again");
    assert_eq!(rig.store.size().max_traces, 7);
    assert!(rig.reload.look(false));
    assert_eq!(rig.store.size().max_traces, 9);
    rig.write("store:\n  max_traces: 11\n");
    assert!(rig.reload.look(true), "SIGHUP: at once");
    assert_eq!(rig.store.size().max_traces, 11);
    // It was changed and changed back between two looks.
    rig.write("store:\n  max_traces: 12\n");
    assert!(!rig.reload.look(false));
    rig.write("store:\n  max_traces: 11\n");
    assert!(rig.reload.look(false) && rig.store.size().max_traces == 11);
}

#[test]
fn a_flag_over_the_file_stays_over_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    fs::write(&path, "store:\n  max_traces: 5\n").unwrap();
    let args = ConfigArgs {
        config: Some(path),
        set: vec!["store.max_traces=3".to_owned()],
        ..ConfigArgs::default()
    };
    let text = file_text(&args).unwrap();
    let (layers, _) = configuration_of(&args, text.as_deref()).unwrap();
    let changed = configuration_of(&args, Some("store:\n  max_traces: 8\n")).unwrap().0;
    assert_eq!(changed.differing(&layers), Vec::<String>::new());
}

#[test]
fn live_keys_exist() {
    let keys: Vec<String> = Layers::default().keys().into_iter().map(|(key, ..)| key).collect();
    for key in LIVE_KEYS {
        assert!(keys.iter().any(|known| known == key), "{key}");
    }
    assert!(Checked::new(&Config::default(), &otlp_flags(&ConfigArgs::default())).is_ok());
}

/// As the kubelet updates the volume of a ConfigMap (pkg/volume/util/atomic_writer.go): `config.yaml` is a link into `..data`, which
/// is a link that is renamed over.
#[cfg(unix)]
#[test]
fn the_exchange_of_a_configmap_is_seen() {
    use std::os::unix::fs::symlink;
    let mut rig = Rig::new("store:\n  max_traces: 7\n");
    let volume = rig.path().parent().unwrap().to_owned();
    let put = |version: &str, text: &str| {
        fs::create_dir(volume.join(version)).unwrap();
        fs::write(volume.join(version).join("config.yaml"), text).unwrap();
        symlink(version, volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    };
    put("..2026_1", "store:\n  max_traces: 7\n");
    fs::remove_file(rig.path()).unwrap();
    symlink("..data/config.yaml", rig.path()).unwrap();
    assert!(rig.reload.look(false), "the same content");
    put("..2026_2", "store:\n  max_traces: 9\n");
    fs::remove_dir_all(volume.join("..2026_1")).unwrap();
    rig.settle();
    assert_eq!((rig.store.size().max_traces, rig.refused()), (9, None));
}

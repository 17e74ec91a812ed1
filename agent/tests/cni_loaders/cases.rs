//! Directories of configuration: one file each, or several with the settings that choose among them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::json::Json;
use crate::mutate::{Random, mutated};

/// A directory, and the settings of the runtimes.
pub struct Case {
    /// Names, which may lead into a folder, and contents.
    files: Vec<(String, Vec<u8>)>,
    /// containerd's `max_conf_num`.
    pub max: i64,
    /// CRI-O's `cni_default_network`.
    pub default: &'static str,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = self
            .files
            .iter()
            .map(|(name, text)| (name, text.escape_ascii().to_string()));
        let shown: Vec<String> = files.map(|(name, text)| format!("{name}: {text:.2000}")).collect();
        write!(f, "max {} default {:?} {}", self.max, self.default, shown.join(" | "))
    }
}

impl Case {
    pub fn one(name: &str, text: Vec<u8>) -> Case {
        Case {
            files: vec![(name.to_owned(), text)],
            max: 1,
            default: "",
        }
    }
}

/// Every text under each extension, mutations of single files, and mixtures of several.
pub fn all(texts: &[Vec<u8>], mutations: usize, mixtures: usize, seed: u64) -> Vec<Case> {
    let mut random = Random(seed);
    let texts: Vec<&Vec<u8>> = texts.iter().collect();
    let mut cases = Vec::new();
    for text in &texts {
        cases.extend(EXTENSIONS.map(|extension| Case::one(&format!("10-x.{extension}"), (*text).clone())));
    }
    // Half of the mutations are of texts with the keys that loaders look at.
    let telling: Vec<&Vec<u8>> = texts.iter().copied().filter(|text| has(text, "\"plugins\"")).collect();
    for _ in 0..mutations {
        let text = if random.chance(50) {
            random.one_of(&telling)
        } else {
            random.one_of(&texts)
        };
        let extension = match has(text, "\"plugins\"") {
            is_list if is_list != random.chance(10) => "conflist",
            _ => EXTENSIONS[1 + random.below(2)],
        };
        let mut case = Case::one(&format!("10-x.{extension}"), mutated(text, &mut random));
        if random.chance(15) {
            add_directory(&mut case, &texts, &mut random);
        }
        cases.push(case);
    }
    for _ in 0..mixtures {
        let mut case = Case {
            files: Vec::new(),
            max: random.one_of(&MAXIMA),
            default: random.one_of(&DEFAULTS),
        };
        for _ in 0..random.below(5) {
            let text = if random.chance(70) {
                random.one_of(&telling)
            } else {
                random.one_of(&texts)
            };
            let text = if random.chance(40) {
                mutated(text, &mut random)
            } else {
                text.clone()
            };
            let name = if has(&text, "\"plugins\"") && random.chance(70) {
                LIST_NAMES
            } else {
                NAMES
            };
            case.files.push((random.one_of(name).to_owned(), text));
        }
        cases.push(case);
    }
    cases
}

/// A folder called like the network, from which libcni 1.3 takes more plugins.
fn add_directory(case: &mut Case, texts: &[&Vec<u8>], random: &mut Random) {
    let (_, text) = &case.files[0];
    let Some(Json::Object(members)) = Json::parse(text) else {
        return;
    };
    let name = members.iter().find_map(|(key, value)| match value {
        Json::Text(name) if key == "name" && !name.contains(['/', '\0', '.']) && !name.is_empty() => Some(name.clone()),
        _ => None,
    });
    let Some(name) = name.filter(|name| name.len() < 100) else {
        return;
    };
    for _ in 0..random.below(3) {
        let text = random.one_of(texts);
        let text = if random.chance(50) {
            mutated(text, random)
        } else {
            text.clone()
        };
        let file = random.one_of(&["10-a.conf", "20-b.conf", "c.json", "d.conflist", ".conf"]);
        case.files.push((format!("{name}/{file}"), text));
    }
    if random.chance(10) {
        case.files.push((name, b"a file, no folder".to_vec()));
    }
}

fn has(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}

/// The directories of all cases, plugins that answer VERSION, and the runtimes' settings.
pub struct Stage(tempfile::TempDir);

impl Stage {
    pub fn new(cases: &[Case], texts: &[Vec<u8>]) -> Stage {
        let stage = Stage(tempfile::tempdir().unwrap());
        for (place, case) in cases.iter().enumerate() {
            let directory = stage.directory(place);
            fs::create_dir_all(&directory).unwrap();
            for (name, text) in &case.files {
                let path = directory.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                // A folder of this name may be there.
                let _ = fs::write(path, text);
            }
            let settings = format!("[plugins.cri.cni]\nmax_conf_num = {}\n", case.max);
            write(&stage.root(case).join("etc/containerd/config.toml"), &settings, 0o644);
            let settings = format!("[crio.network]\ncni_default_network = '{}'\n", case.default);
            write(&stage.root(case).join("etc/crio/crio.conf"), &settings, 0o644);
        }
        let mut kinds = BTreeSet::from(["bridge".to_owned()]);
        for text in texts {
            Json::parse(text).inspect(|json| add_kinds(json, &mut kinds));
        }
        for kind in kinds
            .iter()
            .filter(|kind| *kind != "absent" && !kind.contains(['/', '\0']) && kind.len() < 100)
        {
            write(&stage.bin_dir().join(kind), PLUGIN, 0o755);
        }
        stage
    }

    pub fn directory(&self, place: usize) -> PathBuf {
        self.0.path().join(format!("cases/{place:05}"))
    }

    pub fn bin_dir(&self) -> PathBuf {
        self.0.path().join("bin")
    }

    /// The node's file system, with the settings of a case.
    pub fn root(&self, case: &Case) -> PathBuf {
        self.0.path().join(format!("roots/{}-{}", case.max, case.default))
    }

    /// Leaves the directories where they are, to look at.
    pub fn keep(self) {
        eprintln!("kept {}", self.0.keep().display());
    }
}

pub fn write(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn add_kinds(json: &Json, kinds: &mut BTreeSet<String>) {
    match json {
        Json::List(values) => values.iter().for_each(|value| add_kinds(value, kinds)),
        Json::Object(members) => {
            for (key, value) in members {
                match value {
                    Json::Text(kind) if key == "type" && !kind.is_empty() && !kind.starts_with('.') => {
                        kinds.insert(kind.clone());
                    }
                    value => add_kinds(value, kinds),
                }
            }
        }
        Json::Raw(_) | Json::Text(_) => {}
    }
}

const EXTENSIONS: [&str; 3] = ["conflist", "conf", "json"];
const MAXIMA: [i64; 5] = [0, 1, 1, 2, -1];
const DEFAULTS: [&str; 5] = ["", "", "", "network1", "mynet"];
const LIST_NAMES: &[&str] = &[
    "10-a.conflist",
    "20-b.conflist",
    ".conflist",
    "zz.conflist",
    "-.conflist",
];
const NAMES: &[&str] = &[
    "10-a.conf",
    "15.json",
    ".conf",
    ".json",
    "A.CONF",
    "x.conf.bak",
    "no-extension",
    "ä.conf",
    "a b.conf",
    "10-a.conflist",
    "x.",
    ".conf.conflist",
];
/// Prints what follows its first line, whatever it is executed for. The shell would take ten times as long.
const PLUGIN: &str = "#!/usr/bin/tail -n+2\n{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n";

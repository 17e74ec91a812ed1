//! The Dockerfiles, built by podman without a registry: with stand-ins for the binaries, and for the base of Windows.
//!
//! What is held is what the files say: one program, how it is started, as whom. Does not: fetch anything, run the images.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::helm::{output, root};

/// A podman with all its state in a folder that goes with the test.
struct Podman(tempfile::TempDir);

impl Podman {
    /// Prints `SKIPPED` where it cannot be.
    fn find(test: &str) -> Option<Podman> {
        let missing = match Command::new("podman").arg("--version").output() {
            Err(_) => Some("podman is not installed"),
            // Without root, layers can be built and not looked into.
            Ok(_) if fs::metadata("/proc/self").unwrap().uid() != 0 => Some("needs root"),
            Ok(_) => None,
        };
        if let Some(missing) = missing {
            eprintln!("SKIPPED {test}: {missing}");
            return None;
        }
        Some(Podman(tempfile::tempdir().unwrap()))
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut podman = Command::new("podman");
        for (flag, folder) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            podman.arg(flag).arg(self.0.path().join(folder));
        }
        let ran = output(podman.arg("--storage-driver=vfs").args(arguments));
        let (printed, problem) = (
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr),
        );
        assert!(ran.status.success(), "podman {arguments:?}: {printed}{problem}");
        printed.trim().to_owned()
    }

    /// Builds, and returns the image's configuration.
    fn build(&self, file: &Path, context: &Path, platform: &str, name: &str) -> Value {
        self.run(&[
            "build",
            "--isolation=chroot",
            "--pull=never",
            "--platform",
            platform,
            "--tag",
            name,
            "--file",
            file.to_str().unwrap(),
            context.to_str().unwrap(),
        ]);
        let image: Value = serde_json::from_str(&self.run(&["image", "inspect", name])).unwrap();
        image[0].clone()
    }
}

#[test]
fn podman_builds_the_linux_image_for_each_architecture() {
    let Some(podman) = Podman::find("podman_builds_the_linux_image_for_each_architecture") else {
        return;
    };
    let context = tempfile::tempdir().unwrap();
    for arch in ["amd64", "arm64"] {
        fs::create_dir(context.path().join(arch)).unwrap();
        fs::write(context.path().join(arch).join("sandglass"), arch).unwrap();
        // What else lies beside it must not get in.
        fs::write(context.path().join(format!("sandglass-{arch}.tar")), "archive").unwrap();
    }
    for arch in ["amd64", "arm64"] {
        let (file, name) = (
            root("deploy/image/Dockerfile.linux"),
            format!("localhost/sandglass:{arch}"),
        );
        let image = podman.build(&file, context.path(), &format!("linux/{arch}"), &name);
        assert_eq!((&image["Os"], &image["Architecture"]), (&"linux".into(), &arch.into()));
        assert_eq!(image["Config"]["Entrypoint"], serde_json::json!(["/sandglass"]));
        assert_eq!(image["Config"]["User"], "65532:65532");
        assert_eq!(image["RootFS"]["Layers"].as_array().unwrap().len(), 1, "{image}");
        let mounted = podman.run(&["image", "mount", &name]);
        let files: Vec<_> = fs::read_dir(&mounted)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(files, ["sandglass"]);
        let binary = Path::new(&mounted).join("sandglass");
        assert_eq!(fs::read_to_string(&binary).unwrap(), arch);
        assert_eq!(fs::metadata(&binary).unwrap().permissions().mode() & 0o7777, 0o755);
        podman.run(&["image", "umount", &name]);
    }
}

#[test]
fn podman_builds_the_windows_image_on_a_stand_in_of_its_base() {
    let Some(podman) = Podman::find("podman_builds_the_windows_image_on_a_stand_in_of_its_base") else {
        return;
    };
    let file = root("deploy/image/Dockerfile.windows");
    let text = fs::read_to_string(&file).unwrap();
    let base = text.lines().find_map(|line| line.strip_prefix("FROM ")).unwrap();
    let context = tempfile::tempdir().unwrap();
    fs::write(context.path().join("sandglass.exe"), "MZ").unwrap();
    let scratch = context.path().join("Dockerfile");
    fs::write(&scratch, "FROM scratch\nCOPY Dockerfile /base\n").unwrap();
    podman.build(&scratch, context.path(), "windows/amd64", base);
    let image = podman.build(&file, context.path(), "windows/amd64", "localhost/sandglass:windows");
    assert_eq!(
        (&image["Os"], &image["Architecture"]),
        (&"windows".into(), &"amd64".into())
    );
    assert_eq!(image["Config"]["Entrypoint"], serde_json::json!(["sandglass.exe"]));
    let mounted = podman.run(&["image", "mount", "localhost/sandglass:windows"]);
    assert_eq!(
        fs::read_to_string(Path::new(&mounted).join("sandglass.exe")).unwrap(),
        "MZ"
    );
    podman.run(&["image", "umount", "localhost/sandglass:windows"]);
}

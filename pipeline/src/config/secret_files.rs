//! Values that stand in files of their own: `${file:/PATH}` in the configuration, and `${file:NAME}` for a credential
//! that systemd hands to the unit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Name of the environment variable in which systemd says where the credentials of the unit lie.
pub const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// Most bytes of a value. A password or an address has far fewer, and a wrong path must not fill the memory.
const BYTES_MAX: u64 = 64 * 1024;

/// Returns the content of a file without the line end at its end. A path that does not begin with `/` is below the
/// folder `credentials`. An error names the path, and never a part of the content.
pub fn read(path: &str, credentials: Option<&Path>) -> Result<String, String> {
    let path = match (Path::new(path), credentials) {
        (path, _) if path.is_absolute() => path.to_path_buf(),
        (path, Some(folder)) => folder.join(path),
        (path, None) => {
            return Err(format!(
                "file {} has no `/` in front and is a credential of systemd, and {CREDENTIALS_VARIABLE} is not set",
                path.display()
            ));
        }
    };
    let wrong = |what: &str| format!("file {} {what}", path.display());
    let bytes = bytes_of(&path).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(wrong("has more than 64 KiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8"))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    match line.strip_suffix('\r').unwrap_or(line) {
        "" => Err(wrong("is empty")),
        value => Ok(value.to_owned()),
    }
}

/// Reads a file, up to a byte more than it may have.
fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_line_end_at_the_end_is_not_a_part_of_the_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        for (content, value) in
            [("pa ss", "pa ss"), ("p\n", "p"), ("p\r\n", "p"), ("p\n\n", "p\n"), (" p", " p")]
        {
            fs::write(&path, content).unwrap();
            assert_eq!(read(path.to_str().unwrap(), None).unwrap(), value);
            assert_eq!(read("password", Some(folder.path())).unwrap(), value);
        }
    }

    #[test]
    fn an_unfit_file_is_refused_by_its_name_without_a_word_of_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let name = path.to_str().unwrap();
        let refused = || read(name, None).unwrap_err();
        assert!(refused().contains(name) && refused().contains("cannot be read"), "{}", refused());
        let long = vec![b's'; BYTES_MAX as usize + 1];
        let unfit: [(&[u8], &str); 4] =
            [(b"", "is empty"), (b"\n", "is empty"), (b"secret\xff", "is not UTF-8"), (&long, "64 KiB")];
        for (content, expected) in unfit {
            fs::write(&path, content).unwrap();
            assert!(refused().contains(expected) && !refused().contains("sec"), "{}", refused());
        }
        let refused = read("password", None).unwrap_err();
        assert!(refused.contains("CREDENTIALS_DIRECTORY is not set"), "{refused}");
    }
}

//! NumPy's `.npy` files of f32 matrices: written row by row, read where they are mapped.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use qbert_kernels::FileBytes;
use qbert_pipeline::{Error, ErrorKind, Result};

/// Bytes before the numbers. Fixed, so that the number of rows can be filled in at the end.
const HEADER: usize = 128;
const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

/// A matrix on its way into a file, whose number of rows is known at the end.
pub(super) struct Writer<'a, W: Write + Seek> {
    out: &'a mut W,
    rows: usize,
    width: usize,
}

impl<'a, W: Write + Seek> Writer<'a, W> {
    pub(super) fn new(out: &'a mut W) -> std::io::Result<Self> {
        out.write_all(&[0; HEADER])?;
        Ok(Self { out, rows: 0, width: 0 })
    }

    pub(super) fn rows(&mut self, width: usize, values: &[f32]) -> std::io::Result<()> {
        self.width = width;
        self.rows += values.len() / width.max(1);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.out.write_all(&bytes)
    }

    /// Fills in the header; returns the number of rows.
    pub(super) fn finish(self) -> std::io::Result<usize> {
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header(self.rows, self.width))?;
        self.out.seek(SeekFrom::End(0))?;
        Ok(self.rows)
    }
}

fn header(rows: usize, width: usize) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    let length = HEADER - MAGIC.len() - 2;
    let mut bytes = [MAGIC, &(length as u16).to_le_bytes(), text.as_bytes()].concat();
    bytes.resize(HEADER - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// A matrix in a mapped file.
#[derive(Debug)]
pub(super) struct Matrix {
    bytes: FileBytes,
    pub(super) rows: usize,
    pub(super) width: usize,
}

impl Matrix {
    /// Maps a file that [`Writer`] made.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let wrong = |problem: &str| {
            let message = format!("{}: {problem}", path.display());
            Error::new(ErrorKind::BadInput, message, "make it again with `qbert embed --out`".to_owned())
        };
        let bytes = FileBytes::map(path)
            .map_err(|error| Error::environment(format!("{}: cannot open: {error}", path.display()), None))?;
        let head = bytes.get(..HEADER).filter(|head| head.starts_with(MAGIC));
        let head = head.ok_or_else(|| wrong("not an .npy file of qbert"))?;
        let text = String::from_utf8_lossy(&head[MAGIC.len() + 2..]).into_owned();
        let shape = text.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')')).map(|(shape, _)| shape);
        let numbers: Option<Vec<usize>> =
            shape.map(|shape| shape.split(',').map(|n| n.trim().parse().ok()).collect()).unwrap_or(None);
        let Some([rows, width]) = numbers.as_deref().and_then(|all| <[usize; 2]>::try_from(all).ok()) else {
            return Err(wrong("its header has no shape of two numbers"));
        };
        let expected =
            rows.checked_mul(width).and_then(|count| count.checked_mul(4)).and_then(|n| n.checked_add(HEADER));
        if expected != Some(bytes.len()) || !text.contains("'<f4'") {
            return Err(wrong("its length does not fit its shape"));
        }
        Ok(Self { bytes, rows, width })
    }

    /// All numbers, row by row.
    pub(super) fn values(&self) -> std::borrow::Cow<'_, [f32]> {
        let data = &self.bytes[HEADER..];
        match bytemuck::try_cast_slice(data) {
            Ok(values) if cfg!(target_endian = "little") => std::borrow::Cow::Borrowed(values),
            _ => {
                let (chunks, _) = data.as_chunks::<4>();
                std::borrow::Cow::Owned(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        let mut file = std::fs::File::create(&path).unwrap();
        let mut writer = Writer::new(&mut file).unwrap();
        writer.rows(2, &[1.0, 2.0]).unwrap();
        writer.rows(2, &[3.0, 4.0, 5.0, 6.0]).unwrap();
        assert_eq!(writer.finish().unwrap(), 3);
        drop(file);
        let found = Matrix::open(&path).unwrap();
        assert_eq!(
            (found.rows, found.width, found.values().as_ref()),
            (3, 2, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].as_slice())
        );
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.pop();
        std::fs::write(&path, &bytes).unwrap();
        assert!(Matrix::open(&path).unwrap_err().to_string().contains("does not fit its shape"));
        std::fs::write(&path, b"no").unwrap();
        assert!(Matrix::open(&path).is_err());
    }
}

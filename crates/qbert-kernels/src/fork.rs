//! Notices that this process is a fork of the one that made a value.
//!
//! A forked child has the memory of its parent but only the thread that forked. What counts on other threads must notice
//! that they are gone, at the cost of a load: threads' loops are started every few microseconds.
//!
//! Not a way to use a session on both sides of a fork: a lock that another thread held at that moment stays locked in the
//! child.

#[cfg(target_os = "linux")]
use memmap2::MmapMut;

/// Made in one process; asked in the same one or in a fork of it.
#[derive(Debug)]
pub(crate) struct ForkMark {
    /// A page that the system clears in a child. `None` where the system cannot.
    #[cfg(target_os = "linux")]
    page: Option<MmapMut>,
    process: u32,
}

impl ForkMark {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            page: cleared_by_fork(),
            process: std::process::id(),
        }
    }

    /// Whether this process is a fork of the one that made the mark.
    pub(crate) fn is_in_child(&self) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(page) = &self.page {
            return page.first() == Some(&0);
        }
        std::process::id() != self.process
    }
}

#[cfg(target_os = "linux")]
fn cleared_by_fork() -> Option<MmapMut> {
    let mut page = MmapMut::map_anon(1).ok()?;
    // SAFETY: the range is the mapping, which nothing else refers to yet.
    let asked = unsafe {
        let (address, length) = (page.as_mut_ptr().cast(), page.len());
        rustix::mm::madvise(address, length, rustix::mm::Advice::LinuxWipeOnFork)
    };
    asked.ok()?;
    *page.first_mut()? = 1;
    Some(page)
}

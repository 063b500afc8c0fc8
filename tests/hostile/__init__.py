"""What strangers send, place by place: none of it changes who they are, breaks a page, or fills a process's memory."""

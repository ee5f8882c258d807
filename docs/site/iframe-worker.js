"use strict";
// A page that is opened from a folder may not start a worker: search then runs in a hidden frame.
if (location.protocol === "file:") {
  const load = (inner, url) => new Promise((done) => {
    const script = inner.document.createElement("script");
    script.src = url;
    script.onload = done;
    inner.document.body.append(script);
  });
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...urls) =>
        urls.reduce((before, one) => before.then(() => load(inner, one)), Promise.resolve());
      this.ready = load(inner, url);
    }
    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.ready.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;  // the theme looks for either name
}

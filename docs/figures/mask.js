// Draws MASK (mask-data.js): each tile is a hidden unit, each square one of its 64 weights.
(() => {
  const canvas = document.getElementById("mask"), slider = document.getElementById("mask-round");
  const told = document.getElementById("mask-told"), button = document.getElementById("mask-play");
  const { frames, signs, units, dense } = MASK, across = 8, cell = 9, gap = 10, tile = 8 * cell + gap;
  const ratio = window.devicePixelRatio || 1, width = across * tile - gap, height = Math.ceil(units / across) * tile - gap;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.maxWidth = width + "px";
  slider.max = frames.length - 1;
  const draw = () => {
    const round = Number(slider.value), frame = frames[round], pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    for (let i = 0; i < signs.length; i++) {
      const unit = Math.floor(i / 64), place = i % 64, theta = parseInt(frame.theta[i], 11) / 10;
      const x = (unit % across) * tile + (place % 8) * cell, y = Math.floor(unit / across) * tile + Math.floor(place / 8) * cell;
      pen.fillStyle = "rgba(128,128,128,0.13)";
      pen.fillRect(x, y, cell - 1, cell - 1);
      pen.fillStyle = signs[i] === "+" ? `rgba(9,105,218,${theta})` : `rgba(219,109,40,${theta})`;
      pen.fillRect(x, y, cell - 1, cell - 1);
    }
    const sent = frames.slice(0, round + 1).reduce((sum, each) => sum + each.bytes, 0);
    told.textContent = round === 0
      ? "Start: a random half of the weights."
      : `Round ${round}: accuracy ${frame.accuracy.toFixed(3)}. All clients, both ways: ${(sent / 1e3).toFixed(0)} kB; weights would be ${(round * dense / 1e3).toFixed(0)} kB.`;
  };
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
  button.onclick = () => {
    if (timer) return stop();
    if (slider.value === slider.max) slider.value = 0;
    button.textContent = "Pause";
    timer = setInterval(() => { slider.value = Number(slider.value) + 1; draw(); if (slider.value === slider.max) stop(); }, 450);
  };
  slider.oninput = () => { stop(); draw(); };
  draw();
  if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches) button.click();
})();

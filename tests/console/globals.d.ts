// uPlot's script makes a global variable; its functions get options of any shape.
declare const uPlot: new (options: any, data: any, target: HTMLElement) => any;
